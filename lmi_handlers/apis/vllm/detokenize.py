"""vLLM's `/detokenize`. Source: vLLM 0.32. null means absent."""

from __future__ import annotations

from typing import Annotated

import msgspec

from formatters.vllm.schemas import DetokenizeResponse
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.decoding import decode_typed, unknown_names
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.event_loop import at_once
from lmi_handlers.serving.prompts import LONG
from lmi_handlers.serving.served_model import ServedModel

TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `/detokenize`. `model` is ignored: adapters have the model's tokenizer."""

    tokens: list[TokenId]
    model: str | None = None


def read_tokens(payload: Payload) -> tuple[DetokenizeBody, tuple[str, ...]]:
    """Return the body and the names of its ignored fields. Raises an error if it is wrong."""
    return decode_typed(payload.data, DetokenizeBody), unknown_names(payload.fields, DetokenizeBody, nulls=False)


def detokenize(model: ServedModel, body: DetokenizeBody) -> DetokenizeResponse:
    """Return the text of the tokens, special ones included. Raises `InvalidRequest` or `EngineNotReady`."""
    loaded, tokens = model.loaded, body.tokens
    limit, vocab_size = loaded.max_listed_tokens, loaded.capabilities.vocab_size
    if len(tokens) > limit:
        raise InvalidRequest(f"must have at most {limit} token ids, got {len(tokens)}", field="tokens")
    if tokens and max(tokens) >= vocab_size:
        raise InvalidRequest(f"token ids must be from 0 to {vocab_size - 1}, got {max(tokens)}", field="tokens")
    run = model.run_beside if len(tokens) > LONG else at_once
    return DetokenizeResponse(run(loaded.tokenizer.decode, tokens))
