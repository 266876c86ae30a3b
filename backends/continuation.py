"""Continuing a sequence with an engine that takes what was generated before as part of the prompt."""

from __future__ import annotations

import msgspec

from lmi_handlers.core.request import TokenRequest

NOT_CONTINUED = (
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "bad_words",
    "structured_outputs",
    "thinking_token_budget",
    "prompt_logprobs",
)
"""Parameters with which such an engine cannot continue a sequence, because they tell the prompt from the answer."""

CONTINUED = (
    "only without what tells the prompt from the answer: `seed` (unless greedy), `presence_penalty`, "
    "`frequency_penalty`, `bad_words`, `structured_outputs`, `thinking_token_budget` and `prompt_logprobs`"
)
"""The same for the documentation."""


def within_prompt(request: TokenRequest) -> TokenRequest:
    """Return the request with `generated` at the end of its prompt, and with the parameters of what is left.

    `generated` stays, so that the prompt's own tokens can still be counted.
    """
    count, params, prompt = len(request.generated), request.sampling_params, request.prompt
    if not count:
        return request
    return msgspec.structs.replace(
        request,
        prompt=msgspec.structs.replace(prompt, token_ids=[*prompt.token_ids, *request.generated]),
        sampling_params=msgspec.structs.replace(
            params,
            max_tokens=None if params.max_tokens is None else params.max_tokens - count,
            min_tokens=max(0, params.min_tokens - count),
        ),
    )
