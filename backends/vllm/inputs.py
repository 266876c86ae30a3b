"""A prompt as vLLM's engine takes it."""

from __future__ import annotations

from collections.abc import Sequence

from vllm.inputs import EngineInput

from lmi_handlers.core.request import EncodedPrompt


def engine_input(
    prompt: EncodedPrompt, rendered: EngineInput | None = None, generated: Sequence[int] = ()
) -> EngineInput:
    """Return the engine's form of a prompt, and of what was `generated` before: vLLM takes it as part of the prompt.

    `rendered` is what vLLM's processor has made of a prompt with images.
    """
    made: EngineInput = rendered or {"type": "token", "prompt_token_ids": prompt.token_ids}
    if generated:
        made["prompt_token_ids"] = [*made["prompt_token_ids"], *generated]
    if prompt.cache_salt is not None:
        made["cache_salt"] = prompt.cache_salt
    return made
