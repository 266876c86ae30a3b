"""The adapter for `option.rolling_batch=lmi-dist`: vLLM's, with the options that only lmi-dist has."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from backends.base import ModelFiles
from backends.lmi_dist import DECLARATION
from backends.lmi_dist.options import LmiDistOptions
from backends.vllm.backend import VLLMBackend
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Self

DEFAULT_SPECULATIVE_LENGTH = 5


class LmiDistBackend(VLLMBackend):
    """vLLM with lmi-dist's options for a draft model."""

    declaration = DECLARATION

    @classmethod
    def load(cls, model: ModelFiles, properties: ServingProperties, report: Callable[[str], None]) -> Self:
        """Build vLLM's engine. Raises `ConfigError`."""
        return super().load(model, with_speculation(properties), report)

    @classmethod
    def check_options(cls, properties: ServingProperties) -> None:
        """Check the options with vLLM's own parser."""
        super().check_options(with_speculation(properties))


def with_speculation(properties: ServingProperties) -> ServingProperties:
    """Turn lmi-dist's three draft model options into vLLM's one. Raises `ConfigError` if they conflict with others."""
    options = properties.options_of(LmiDistOptions)
    draft = options.speculative_draft_model
    if draft is None:
        return properties
    if "speculative_config" in properties.extra:
        raise ConfigError("option.speculative_draft_model and option.speculative_config cannot be used together")
    if properties.enable_lora:
        raise ConfigError("option.speculative_draft_model and option.enable_lora cannot be used together")
    config = {
        "method": "draft_model",
        "model": draft,
        "num_speculative_tokens": options.speculative_length or DEFAULT_SPECULATIVE_LENGTH,
        "draft_tensor_parallel_size": options.draft_model_tp_size or 1,
    }
    return msgspec.structs.replace(properties, extra=properties.extra | {"speculative_config": json.dumps(config)})
