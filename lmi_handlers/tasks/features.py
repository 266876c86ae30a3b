"""The hidden states of a model's last layer: as they are, or averaged to compare sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec import UNSET, UnsetType
from torch.nn.functional import cosine_similarity
from transformers import AutoModel, AutoModelForTextEncoding

from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.tasks.lengths import check_characters, check_tokens, read_texts
from lmi_handlers.tasks.loading import load_text_model
from lmi_handlers.tasks.task import MAX_ITEMS, Parameters, Task, by_length, passes

MAX_NUMBERS = 4_000_000
"""Numbers in an answer, each of about 20 bytes."""


class _Encoder(Task):
    """Computes hidden states without those of padding, which the library's pipeline would return from a batch."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model = model
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, name: str, path: Path, properties: ServingProperties) -> Task:  # noqa: ARG003  one task
        return cls(*load_text_model(path, properties, _auto_class))

    def _states(self, texts: Sequence[str]) -> list[torch.Tensor]:
        """Return `[tokens, size]` in float32 on the CPU for each text."""
        return by_length(texts, len, lambda rows: [state for part in passes(rows) for state in self._pass(part)])

    def _pass(self, texts: Sequence[str]) -> Iterator[torch.Tensor]:
        inputs = self._tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt").to(self._model.device)
        with torch.inference_mode():
            hidden = self._model(**inputs)[0].float().cpu()
        for states, mask in zip(hidden, inputs["attention_mask"].cpu().bool(), strict=True):
            yield states[mask]


class FeatureExtractionParameters(Parameters, frozen=True):
    """Of the pipeline."""

    truncation: bool | UnsetType = UNSET
    truncate: bool | UnsetType = UNSET


class FeatureExtraction(_Encoder):
    """Returns a vector per token, `[1, tokens, size]` for each text."""

    parameters = FeatureExtractionParameters
    compact = True

    def items(self, inputs: object) -> tuple[list[Any], bool]:
        return read_texts(inputs)

    def check(self, items: Sequence[str], parameters: FeatureExtractionParameters) -> None:
        check_characters(items)
        if parameters.truncation is not True and parameters.truncate is not True:
            check_tokens(self._tokenizer, [(text, None) for text in items])
        tokens = sum(map(len, self._tokenizer(items, truncation=True)["input_ids"]))
        if (numbers := tokens * self._model.config.hidden_size) > MAX_NUMBERS:
            raise InvalidRequest(
                f"has {tokens} tokens, which are {numbers} numbers; at most {MAX_NUMBERS} are possible", field="inputs"
            )

    def run(self, items: list[str], parameters: Parameters) -> list[Any]:  # noqa: ARG002  it is `check` that uses them
        return [[states.tolist()] for states in self._states(items)]


class SentenceSimilarity(_Encoder):
    """Compares a sentence with others: cosines of their mean vectors. Texts that are too long are cut."""

    unwraps = True

    def items(self, inputs: object) -> tuple[list[Any], bool]:
        items: list[Any] = inputs if isinstance(inputs, list) else [inputs]
        for item in items:
            if not isinstance(item, dict) or item.keys() != {"source_sentence", "sentences"}:
                raise InvalidRequest(
                    'must be {"source_sentence": .., "sentences": [..]} or a list of them', field="inputs"
                )
            if not isinstance(item["source_sentence"], str):
                raise InvalidRequest("must be a text", field="inputs.source_sentence")
            sentences, single = read_texts(item["sentences"], "inputs.sentences")
            if single or not sentences:
                raise InvalidRequest("must be a list of texts, and not empty", field="inputs.sentences")
        if sum(len(item["sentences"]) + 1 for item in items) > MAX_ITEMS:
            raise InvalidRequest(f"must have at most {MAX_ITEMS} sentences in total", field="inputs")
        return items, items is not inputs

    def check(self, items: Sequence[dict[str, Any]], parameters: Parameters) -> None:  # noqa: ARG002  there are none
        check_characters(text for item in items for text in (item["source_sentence"], *item["sentences"]))

    def run(self, items: list[dict[str, Any]], parameters: Parameters) -> list[Any]:  # noqa: ARG002  there are none
        texts = [text for item in items for text in (item["source_sentence"], *item["sentences"])]
        means = iter([states.mean(dim=0) for states in self._states(texts)])
        results = []
        for item in items:
            source = next(means)
            others = torch.stack([next(means) for _ in item["sentences"]])
            results.append(cosine_similarity(source[None], others).tolist())
        return results


def _auto_class(config: Any) -> Any:
    return AutoModelForTextEncoding if config.is_encoder_decoder else AutoModel
