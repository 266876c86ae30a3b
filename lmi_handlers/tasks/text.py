"""Tasks that the library's pipelines for text have: classification, of tokens too, and masked words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import transformers
from msgspec import UNSET, Meta, UnsetType

from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.tasks.lengths import check_characters, check_tokens, read_texts
from lmi_handlers.tasks.loading import load_text_model, make_pipeline
from lmi_handlers.tasks.task import MAX_ROWS, Parameters, Task, by_length

MAX_LABELS = 100
"""Candidate labels of a zero-shot classification."""

MAX_HYPOTHESES = 1000
"""Pairs of a text and a label in a request for zero-shot classification: each is a row of a forward pass."""

_TEMPLATE_TOKENS = 16
"""More tokens than the library's own template has, "This example is {}."."""

MAX_MASKS = 32
"""Masks in one text. Each has `top_k` candidates, and each of those a text."""

_Function = Literal["sigmoid", "softmax", "none"]
_Words = Annotated[list[Annotated[str, Meta(max_length=1000)]], Meta(min_length=1, max_length=1000)]


class _PipelineTask(Task):
    """Computes with the library's pipeline, which pads the rows of a forward pass to the longest of them."""

    task: ClassVar[str]
    auto_class: ClassVar[Any]

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self._pipeline = make_pipeline(self.task, model, tokenizer=tokenizer)

    @classmethod
    def load(cls, name: str, path: Path, properties: ServingProperties) -> Task:  # noqa: ARG003  one task
        return cls(*load_text_model(path, properties, lambda _config: cls.auto_class))

    def items(self, inputs: object) -> tuple[list[Any], bool]:
        return read_texts(inputs)

    def check(self, items: Sequence[str], parameters: Any) -> None:  # noqa: ARG002  the same for all
        check_characters(items)

    def run(self, items: list[Any], parameters: Parameters) -> list[Any]:
        return by_length(items, _length, lambda rows: self.compute(rows, parameters.given()))

    def compute(self, rows: list[Any], arguments: dict[str, Any]) -> list[Any]:
        """Return the pipeline's results."""
        results: list[Any] = self._pipeline(rows, batch_size=MAX_ROWS, **arguments)
        return results


class TextClassificationParameters(Parameters, frozen=True):
    """Of the pipeline; `truncation` is the tokenizer's."""

    top_k: Annotated[int, Meta(ge=1)] | UnsetType | None = UNSET
    function_to_apply: _Function | UnsetType = UNSET
    truncation: bool | UnsetType = UNSET
    max_length: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    padding: bool | UnsetType = UNSET


class TextClassification(_PipelineTask):
    """Labels texts, or pairs `{"text": .., "text_pair": ..}` of texts."""

    task = "text-classification"
    auto_class = transformers.AutoModelForSequenceClassification
    parameters = TextClassificationParameters

    def items(self, inputs: object) -> tuple[list[Any], bool]:
        items = inputs if isinstance(inputs, list) else [inputs]
        for item in items:
            if not isinstance(item, str) and not _is_pair(item):
                raise InvalidRequest(
                    'must be a text, a pair {"text": .., "text_pair": ..} or a list of them', field="inputs"
                )
        return items, items is not inputs

    def check(self, items: Sequence[Any], parameters: TextClassificationParameters) -> None:
        pairs = [(item, None) if isinstance(item, str) else (item["text"], item.get("text_pair")) for item in items]
        check_characters(text for pair in pairs for text in pair if text is not None)
        limit = self.tokenizer.model_max_length
        special = self.tokenizer.num_special_tokens_to_add(pair=any(pair is not None for _, pair in pairs))
        if parameters.max_length is not UNSET and not special < parameters.max_length <= limit:
            raise InvalidRequest(f"must be from {special + 1} to {limit}", field="parameters.max_length")
        if parameters.truncation is not True:
            check_tokens(self.tokenizer, pairs)


class TokenClassificationParameters(Parameters, frozen=True):
    """Of the pipeline."""

    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] | UnsetType = UNSET
    ignore_labels: Annotated[list[str], Meta(max_length=1000)] | UnsetType = UNSET
    stride: Annotated[int, Meta(ge=0)] | UnsetType = UNSET


class TokenClassification(_PipelineTask):
    """Labels the tokens of texts, or with `aggregation_strategy` words and names. Texts that are too long are cut."""

    task = "token-classification"
    auto_class = transformers.AutoModelForTokenClassification
    parameters = TokenClassificationParameters

    def check(self, items: Sequence[str], parameters: TokenClassificationParameters) -> None:
        check_characters(items)
        if parameters.stride is not UNSET:
            if parameters.aggregation_strategy in (UNSET, "none"):
                raise InvalidRequest("needs an aggregation_strategy other than none", field="parameters.stride")
            limit = self.tokenizer.model_max_length - self.tokenizer.num_special_tokens_to_add()
            if parameters.stride >= limit // 2:
                raise InvalidRequest(f"must be less than {limit // 2}, half a text", field="parameters.stride")


class ZeroShotClassificationParameters(Parameters, frozen=True):
    """Of the pipeline."""

    candidate_labels: Annotated[str, Meta(max_length=10_000)] | _Words
    hypothesis_template: Annotated[str, Meta(max_length=1000)] | UnsetType = UNSET
    multi_label: bool | UnsetType = UNSET


class ZeroShotClassification(_PipelineTask):
    """Says how well labels of the request fit texts, with a model for textual entailment. Texts too long are cut."""

    task = "zero-shot-classification"
    auto_class = transformers.AutoModelForSequenceClassification
    parameters = ZeroShotClassificationParameters

    def check(self, items: Sequence[str], parameters: ZeroShotClassificationParameters) -> None:
        given = parameters.candidate_labels
        labels = [label for label in given.split(",") if label.strip()] if isinstance(given, str) else given
        if not 1 <= len(labels) <= MAX_LABELS:
            raise InvalidRequest(
                f"must have 1 to {MAX_LABELS} labels, got {len(labels)}", field="parameters.candidate_labels"
            )
        if len(labels) * len(items) > MAX_HYPOTHESES:
            raise InvalidRequest(
                f"{len(items)} texts with {len(labels)} labels are {len(items) * len(labels)} pairs; at most "
                f"{MAX_HYPOTHESES} are possible",
                field="inputs",
            )
        template = parameters.hypothesis_template
        # The library formats it: any other field would read attributes, or pad to any width.
        if template is not UNSET and (template.count("{}") != 1 or {*template.replace("{}", "")} & {*"{}"}):
            raise InvalidRequest("must have {} once, and no other braces", field="parameters.hypothesis_template")
        check_characters(text for text in items for _ in labels)  # each is tokenised once per label
        # The library cuts the text only. If its hypothesis leaves no room for a text, nothing is cut.
        room = self.tokenizer.model_max_length - self.tokenizer.num_special_tokens_to_add(pair=True)
        for label in labels:
            hypothesis = ("{}" if template is UNSET else template).format(label.strip())
            tokens = len(self.tokenizer(hypothesis, add_special_tokens=False, verbose=False)["input_ids"])
            if tokens + (_TEMPLATE_TOKENS if template is UNSET else 0) >= room:
                raise InvalidRequest(
                    f"a label and its template have {tokens} tokens, of at most {room}",
                    field="parameters.candidate_labels",
                )


class TokenizerArguments(Parameters, frozen=True):
    """`tokenizer_kwargs` of the fill-mask pipeline."""

    truncation: bool | UnsetType = UNSET


class FillMaskParameters(Parameters, frozen=True):
    """Of the pipeline."""

    top_k: Annotated[int, Meta(ge=1, le=100)] | UnsetType = UNSET
    targets: Annotated[str, Meta(max_length=1000)] | _Words | UnsetType = UNSET
    tokenizer_kwargs: TokenizerArguments | UnsetType = UNSET

    def given(self) -> dict[str, Any]:
        values = super().given()
        if isinstance(self.tokenizer_kwargs, TokenizerArguments):
            values["tokenizer_kwargs"] = self.tokenizer_kwargs.given()
        return values


class FillMask(_PipelineTask):
    """Fills the masks of texts."""

    task = "fill-mask"
    auto_class = transformers.AutoModelForMaskedLM
    parameters = FillMaskParameters
    unwraps = True

    def check(self, items: Sequence[str], parameters: FillMaskParameters) -> None:
        check_characters(items)
        mask = self.tokenizer.mask_token
        for text in items:
            if not 1 <= text.count(mask) <= MAX_MASKS:
                raise InvalidRequest(
                    f"each text must have 1 to {MAX_MASKS} masks, which are written {mask}", field="inputs"
                )
        kwargs = parameters.tokenizer_kwargs
        if not isinstance(kwargs, TokenizerArguments) or kwargs.truncation is not True:
            check_tokens(self.tokenizer, [(text, None) for text in items], "parameters.tokenizer_kwargs.truncation")

    def compute(self, rows: list[Any], arguments: dict[str, Any]) -> list[Any]:
        results = super().compute(rows, arguments)
        return [results] if len(rows) == 1 else results  # the library unwraps a single one


def _is_pair(item: object) -> bool:
    return (
        isinstance(item, dict)
        and "text" in item
        and item.keys() <= {"text", "text_pair"}
        and all(isinstance(text, str) for text in item.values())
    )


def _length(item: Any) -> int:
    return len(item) if isinstance(item, str) else sum(map(len, item.values()))
