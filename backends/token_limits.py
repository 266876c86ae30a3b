"""The number of tokens that an engine of others is asked for."""

from __future__ import annotations

from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.request import TokenRequest


def token_limits(request: TokenRequest, capabilities: Capabilities) -> tuple[int, int]:
    """Return `max_tokens` and `min_tokens`, neither of them more than there is room for after the prompt.

    A client may ask for more than 32 bits can hold. Engines have no more for it: some reject such a request, and others
    fail during a step, which ends the engine.
    """
    params = request.sampling_params
    room = capabilities.max_model_len - len(request.prompt.token_ids)
    limits = room, params.max_tokens, capabilities.max_output_len
    max_tokens = min(limit for limit in limits if limit is not None)
    return max_tokens, min(params.min_tokens, max_tokens)
