"""Tells vLLM how the model marks its thoughts, for `thinking_token_budget`."""

from __future__ import annotations

from vllm.config import VllmConfig
from vllm.config.reasoning import ReasoningConfig

from lmi_handlers.core.thinking import ThinkingMarks


def reasoning_config(marks: ThinkingMarks) -> ReasoningConfig:
    """Return vLLM's configuration for `marks`. It only has room for the first of several alternatives.

    The ids are ours, because vLLM takes the end that it forces for the only one, unless a parser of its own has another.
    """
    config = ReasoningConfig()
    config._reasoning_start_token_ids = list(marks.begins[0])  # noqa: SLF001  no public way to set ids
    config._natural_reasoning_end_token_ids = list(marks.ends[0])  # noqa: SLF001
    config._reasoning_end_token_ids = list(marks.forced_end)  # noqa: SLF001
    return config


def caps_thoughts(config: VllmConfig) -> bool:
    """True if vLLM notices the end of each thought. Its first model runner only looks for the end that it forces."""
    reasoning = config.reasoning_config
    return (
        reasoning is None
        or config.use_v2_model_runner
        or reasoning.natural_reasoning_end_token_ids == reasoning.reasoning_end_token_ids
    )
