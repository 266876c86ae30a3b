"""The meaning of a classifier's scores, as its config.json says."""

from __future__ import annotations

from typing import Any

from torch import nn

from backends.pooling.pooler import ACTIVATIONS
from lmi_handlers.core.errors import ConfigError


def check_classifier(architectures: list[str] | None) -> None:
    """Raise `ConfigError` for a model without scores: engines would give it a classifier with random weights."""
    found = (architectures or ["a model without architectures in config.json"])[0]
    if not found.endswith("ForSequenceClassification"):
        raise ConfigError(f"option.task=text-ranking needs a cross-encoder (..ForSequenceClassification), not {found}")


def read_labels(config: Any) -> tuple[str, ...]:
    """Return the names of the scores, in order. `config` is the library's configuration of the model."""
    return tuple(str(config.id2label[place]) for place in sorted(config.id2label))


def read_activation(config: Any) -> nn.Module:
    """Return the function that sentence-transformers' CrossEncoder applies to the scores of this model.

    Raises `ConfigError` if it is not supported.
    """
    written = getattr(config, "sentence_transformers", None) or {}
    name = written.get("activation_fn") or getattr(config, "sbert_ce_default_activation_function", None)
    if name is None:
        return nn.Sigmoid() if config.num_labels == 1 else nn.Identity()
    kind = str(name).rpartition(".")[2]
    if kind not in ACTIVATIONS:
        raise ConfigError(f"option.model_id: config.json names the activation function {kind}, which is not supported")
    return ACTIVATIONS[kind]()
