"""The options that only lmi-dist has, besides those of vLLM."""

from __future__ import annotations

from typing import Annotated

from backends.vllm.options import VLLMOptions
from lmi_handlers.config.option import Option, PositiveInt


class LmiDistOptions(VLLMOptions, frozen=True, kw_only=True):
    """LMI's options for lmi-dist."""

    speculative_draft_model: Annotated[str | None, Option("Draft model for speculative decoding.")] = None
    speculative_length: Annotated[PositiveInt | None, Option("Number of tokens drafted at a time.")] = None
    draft_model_tp_size: Annotated[
        PositiveInt | None, Option("Number of GPUs that the draft model is split across.")
    ] = None
    record_acceptance_rate: Annotated[bool | None, Option("Reports how many drafted tokens are accepted.")] = None
    speculative_telemetry: Annotated[bool | None, Option("Logs statistics of speculative decoding.")] = None
