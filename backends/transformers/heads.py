"""The heads of the transformers library's models for batches of prompts, as their files declare them."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoModelForTextEncoding

from backends.pooling.pooler import Pooler, SpladePooler, read_pooler
from backends.pooling.scores import check_classifier, read_activation, read_labels
from backends.transformers.loading import load_model
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.pooling_params import PoolingTask


class PoolingHead(ABC):
    """A model and what it computes."""

    tasks: ClassVar[tuple[PoolingTask, ...]]

    labels: tuple[str, ...] = ()
    pooling = ""
    activation: torch.nn.Module = torch.nn.Identity()

    def __init__(self, model: Any) -> None:
        self.model = model

    def check(self, token_ids: Sequence[int]) -> None:
        """Raise `InvalidRequest` for a prompt that this model cannot compute."""

    @abstractmethod
    def compute(
        self, inputs: dict[str, torch.Tensor], lengths: torch.Tensor, tasks: Sequence[PoolingTask]
    ) -> Sequence[torch.Tensor]:
        """Return what each prompt's task asks for, in the shapes of `pooled_output`.

        `inputs` are the model's, padded on the right, and `lengths` are those of the prompts.
        """


class Embedder(PoolingHead):
    """Any encoder or decoder, and the modules that pool its vectors."""

    tasks: ClassVar[tuple[PoolingTask, ...]] = ("embed", "embed_all")

    def __init__(self, model: Any, pooler: Pooler) -> None:
        super().__init__(model)
        self.pooling = pooler.name
        self._pooler = pooler.to(model.get_input_embeddings().weight.device)

    def compute(
        self, inputs: dict[str, torch.Tensor], lengths: torch.Tensor, tasks: Sequence[PoolingTask]
    ) -> Sequence[torch.Tensor]:
        hidden = self._hidden(inputs)
        pooled = self._pooler(hidden, lengths).cpu()
        return [
            hidden[row, : lengths[row]].float().cpu() if task == "embed_all" else pooled[row]
            for row, task in enumerate(tasks)
        ]

    def _hidden(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the vectors of the last layer, `[prompts, tokens, size]`."""
        hidden: torch.Tensor = self.model(**inputs).last_hidden_state
        return hidden


class ChatEmbedder(Embedder):
    """A model that generates text. The vectors of its last layer are pooled.

    `attention` is the library's name of the attention that the model computes these with; that of a rolling batch has no
    batch here.
    """

    tasks = ("embed",)

    def __init__(self, model: Any, pooler: Pooler, attention: str) -> None:
        super().__init__(model, pooler)
        self._attention = attention

    def _hidden(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        generating = self.model.config._attn_implementation  # noqa: SLF001 (there is no public way to read it)
        self.model.set_attn_implementation(self._attention)
        try:
            hidden: torch.Tensor = self.model.base_model(**inputs, use_cache=False).last_hidden_state
        finally:
            self.model.set_attn_implementation(generating)
        return hidden


class SparseEmbedder(PoolingHead):
    """A masked language model. Its scores for each token of the vocabulary are pooled (SPLADE)."""

    tasks = ("embed_sparse",)
    pooling = "splade"

    def __init__(self, model: Any, pooler: SpladePooler) -> None:
        super().__init__(model)
        self._pooler = pooler

    def compute(
        self,
        inputs: dict[str, torch.Tensor],
        lengths: torch.Tensor,
        tasks: Sequence[PoolingTask],  # noqa: ARG002
    ) -> Sequence[torch.Tensor]:
        weights: torch.Tensor = self._pooler(self.model(**inputs).logits, lengths)
        return weights.cpu().unbind()


class Classifier(PoolingHead):
    """A model with one score per label, or a cross-encoder with a single score for two texts."""

    tasks = ("classify",)

    def __init__(self, model: Any) -> None:
        """Raises `ConfigError` if the model's files name an activation function that is not supported."""
        super().__init__(model)
        self.labels = read_labels(model.config)
        self.activation = read_activation(model.config)
        self._has_padding_token = model.config.get_text_config().pad_token_id is not None

    def check(self, token_ids: Sequence[int]) -> None:
        """An encoder-decoder model, such as BART, scores the vector of the last end-of-sequence token."""
        if self.model.config.is_encoder_decoder and self.model.config.eos_token_id not in token_ids:
            raise InvalidRequest("the text must have the model's end-of-sequence token")

    def compute(
        self,
        inputs: dict[str, torch.Tensor],
        lengths: torch.Tensor,
        tasks: Sequence[PoolingTask],  # noqa: ARG002
    ) -> Sequence[torch.Tensor]:
        if not self._has_padding_token:
            self._choose_padding_token(inputs["input_ids"], lengths)
        by_eos = self.model.config.is_encoder_decoder
        scores: torch.Tensor = self._scores_by_eos(inputs) if by_eos else self.model(**inputs).logits
        return scores.float().cpu().unbind()

    def _choose_padding_token(self, input_ids: torch.Tensor, lengths: torch.Tensor) -> None:
        """Pad with a token that ends no prompt, because a decoder's class takes the last token that is not padding.

        A single prompt needs one as well: the token chosen for an earlier batch stays in the configuration.
        """
        last = set(input_ids[torch.arange(len(lengths)), lengths - 1].tolist())
        token = next(token for token in itertools.count() if token not in last)
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        input_ids.masked_fill_(positions >= lengths[:, None], token)
        self.model.config.get_text_config().pad_token_id = token

    def _scores_by_eos(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Compute prompts with the same number of end-of-sequence tokens together, as the library demands."""
        counts = inputs["input_ids"].eq(self.model.config.eos_token_id).sum(dim=1)
        parts = [(counts == count).nonzero().flatten() for count in set(counts.tolist())]
        scores = [self.model(**{name: tensor[rows] for name, tensor in inputs.items()}).logits for rows in parts]
        return torch.cat(scores)[torch.cat(parts).argsort()]


def load_head(path: Path, properties: ServingProperties) -> PoolingHead:
    """Load the model in `path` for the task that the options name. Raises `ConfigError`."""
    if properties.ranks:
        return Classifier(load_model(path, properties, _classifier_class))
    pooler = read_pooler(path)
    if isinstance(pooler, SpladePooler):
        return SparseEmbedder(load_model(path, properties, lambda _: AutoModelForMaskedLM), pooler)
    return Embedder(load_model(path, properties, _encoder_class), pooler)


def _encoder_class(config: Any) -> Any:
    """Only the encoder of an encoder-decoder model, such as T5, embeds texts."""
    return AutoModelForTextEncoding if config.is_encoder_decoder else AutoModel


def _classifier_class(config: Any) -> Any:
    check_classifier(config.architectures)
    return AutoModelForSequenceClassification
