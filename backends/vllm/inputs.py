"""A prompt as vLLM's engine takes it."""

from __future__ import annotations

from vllm.inputs import EngineInput

from lmi_handlers.core.request import EncodedPrompt


def engine_input(prompt: EncodedPrompt, rendered: EngineInput | None = None) -> EngineInput:
    """Return the engine's form of a prompt. `rendered` is what vLLM's processor has made of one with images."""
    made: EngineInput = rendered or {"type": "token", "prompt_token_ids": prompt.token_ids}
    if prompt.cache_salt is not None:
        made["cache_salt"] = prompt.cache_salt
    return made
