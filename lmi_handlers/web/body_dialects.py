"""Chooses the dialect of a body on the invoke routes, after the model's input formatter has seen it."""

from __future__ import annotations

from functools import partial

import msgspec
from werkzeug.wrappers import Request

from lmi_handlers.apis.base import Dialect, Payload
from lmi_handlers.apis.custom_formatting import Formatting
from lmi_handlers.apis.invocations import Invocations
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import PayloadTooLarge
from lmi_handlers.core.json_shape import begins_object
from lmi_handlers.core.usage import Usage
from lmi_handlers.serving.parsed import Change, unchanged
from lmi_handlers.serving.served_model import ServedModel
from lmi_handlers.web.custom_code import headers_for_code, invoke_of
from lmi_handlers.web.exchange import Exchange


class BodyDialects:
    """Without formatters, this only looks at the body's fields."""

    def __init__(self, model: ServedModel, endpoint: Invocations, properties: ServingProperties) -> None:
        self._model = model
        self._endpoint = endpoint
        self._budget = Budget.of(properties)
        self._formatting = (
            None if model.formatters is None else Formatting(model.formatters, properties, lambda: model.facts)
        )

    def checked(self, payload: Payload, *, is_json: bool) -> Payload:
        """Check the size of a body before it is decoded. `is_json` says that its content type is JSON's.

        If the model may have an input formatter, other bodies may be anything. Raises `PayloadTooLarge`.
        """
        if payload.content_type == "text/plain":
            self._budget.check_text(payload.data)
        elif is_json or self._formatting is None:
            self._budget.check_json(payload.data)
        elif self._is_opaque(payload.data):
            return msgspec.structs.replace(payload, opaque=True)
        return payload

    def _is_opaque(self, data: bytes) -> bool:
        if not begins_object(data):
            return True
        try:
            self._budget.check_json(data)
        except PayloadTooLarge:
            return True
        return False

    def choose(self, exchange: Exchange, payload: Payload, usage: Usage) -> tuple[Payload, Dialect, Change]:
        """Return the body to parse, its dialect, and the change to make once it is parsed. Raises the error of a formatter."""
        if self._formatting is None:
            return payload, self._endpoint.of(payload), unchanged
        _ = self._model.loaded  # formatters may use its tokenizer; raises `EngineNotReady`
        new_calls = partial(self._formatting.calls, self._model.deadline(usage.started, exchange.connected))
        asked = Request(exchange.environ)  # Flask's is gone once the answer to JSON lines has begun
        invoke = invoke_of(payload.request_id, headers_for_code(asked), asked.args.items(multi=True), payload.data)
        formatted = self._formatting.format_input(payload, invoke, new_calls)
        if formatted is not payload or payload.opaque:
            self._budget.check_json(formatted.data)
            formatted = msgspec.structs.replace(formatted, opaque=False)
        dialect = self._endpoint.of(formatted)
        change = partial(self._formatting.format_output, payload=formatted, dialect=dialect, new_calls=new_calls)
        return formatted, dialect, change
