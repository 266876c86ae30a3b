"""llama.cpp's dialect of `/infill`: the text between a prefix and a suffix, with other files as context.

Source: the README of llama.cpp's server, and its answers. docs/openai.md says where this server differs.
"""

from __future__ import annotations

from functools import partial

from formatters.llama_cpp.errors import error_document
from formatters.llama_cpp.infill import InfillJsonFormatter, InfillOptions, InfillSseFormatter
from formatters.llama_cpp.schemas import LlamaCppError
from lmi_handlers.apis.base import Payload, Reply
from lmi_handlers.apis.llama_cpp.body import InfillBody
from lmi_handlers.apis.openai.dialect import (
    NO_INFILL,
    STATUS,
    OpenAIDialect,
    check_length,
    status_of,
)
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.errors import LMIError, UnsupportedFeature
from lmi_handlers.core.request import GenerationRequest, Prompt
from lmi_handlers.serving.parsed import Parsed

ANSWER_ROOM = 256
"""Tokens that the context of other files leaves for an answer without a limit."""


class InfillDialect(OpenAIDialect):
    """Dialect of `/infill`, and of bodies with `input_prefix` on the invoke routes."""

    error_type = LlamaCppError

    def parse(self, payload: Payload) -> Parsed:
        body, ignored = self._decoded(payload, InfillBody)
        extra = body.input_extra or []
        self._budget.check_items("input_extra", extra)
        facts = self._facts()
        if facts.infill is None:
            raise UnsupportedFeature(NO_INFILL, field="input_prefix")
        params = body.sampling_params(facts.infill_ends)
        gap = facts.infill.prompt(body.input_prefix + (body.prompt or ""), body.input_suffix)
        context = facts.infill.context([(file.filename, file.text) for file in extra])
        self._budget.check_repeated("input_prefix", context + gap, params.n)  # each answer shows all of it
        streams = payload.stream if body.stream is None else body.stream
        request = GenerationRequest(
            request_id=payload.request_id,
            prompts=(Prompt(context + gap, self._adapter(body.model, payload)),),
            sampling_params=params,
            stream=streams,
            truncate=_room(gap, params.max_tokens, facts.capabilities) if extra else None,
            ignored_parameters=ignored,
        )
        options = InfillOptions(
            model=self._model_name(body.model),
            settings=body.settings(params, stream=streams),
            statuses=STATUS,
            token_ids=bool(body.return_tokens),
            response_fields=tuple(body.response_fields or ()),
        )
        formatter = partial(InfillSseFormatter if streams else InfillJsonFormatter, options=options)
        return Parsed(request, formatter, body.alias, partial(check_length, "input_prefix"), "input_prefix")

    def error(self, error: LMIError) -> Reply:
        """Render `{"error":{"code":400,"message":"..","type":".."}}`."""
        status = status_of(error)
        return Reply(status, error_document(error, status))


def _room(gap: str, max_tokens: int | None, capabilities: Capabilities) -> int | None:
    """Return how many tokens at the end of the prompt to keep: the context of other files is the part to drop.

    Returns None if the rest alone may be too long for the model, because its first token must not be cut off. A token
    has at least one byte.
    """
    room = capabilities.max_model_len - min(
        ANSWER_ROOM if max_tokens is None else max_tokens, capabilities.max_model_len // 2
    )
    room = min(room, capabilities.max_input_tokens)
    return room if len(gap.encode(errors="replace")) <= room else None
