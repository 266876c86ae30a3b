"""Loads models and tokenizers for tasks, on the process's device and with the options of the transformers backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import pipeline

from backends.max_model_len import choose_max_model_len
from backends.transformers.loading import load_model, position_limit
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.text.checkpoint_tokenizer import load_library_tokenizer


def use_device(device: int) -> None:
    """Let this process compute on GPU number `device`. It is -1 without a GPU."""
    if device >= 0 and torch.cuda.is_available():
        torch.cuda.set_device(device)


def load_text_model(path: Path, properties: ServingProperties, auto_class: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Return the model and its tokenizer, which can pad and knows how many tokens the model takes.

    Raises `ConfigError`, or `LoadFailed` if a retry may help.
    """
    tokenizer = load_library_tokenizer(path, trust_remote_code=properties.trust_remote_code)
    model = load_model(path, properties, auto_class)
    tokenizer.model_max_length = choose_max_model_len(
        position_limit(model), properties.max_model_len, tokenizer.model_max_length
    )
    if tokenizer.pad_token_id is None:  # such as GPT-2's
        if tokenizer.eos_token_id is None:
            raise ConfigError(f"option.model_id: the tokenizer in {path} has no token for padding")
        tokenizer.pad_token = tokenizer.eos_token
    if model.config.pad_token_id is None:
        model.config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def load_processor(kind: Any, path: Path, properties: ServingProperties) -> Any:
    """Return the model's preprocessor of class `kind`. Raises `ConfigError`."""
    try:
        return kind.from_pretrained(path, trust_remote_code=properties.trust_remote_code)
    except (ImportError, KeyError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"option.model_id: the preprocessor in {path} cannot be loaded: {reason}") from error


def make_pipeline(task: str, model: Any, **processors: Any) -> Any:
    """Return the library's pipeline for a loaded model."""
    placed = getattr(model, "hf_device_map", None) is not None
    return pipeline(task, model=model, device=None if placed else model.device, **processors)  # type: ignore[call-overload]  # the library's own
