"""Answers the invoke routes: SageMaker's headers, JSON lines, and bodies of several dialects."""

from __future__ import annotations

from flask import Response

from lmi_handlers.apis.base import Payload, front_end_json
from lmi_handlers.apis.invocations import ADAPTER_IDENTIFIER, Invocations
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import LMIError, ModelNotFound, UnsupportedFeature
from lmi_handlers.serving.served_model import ServedModel
from lmi_handlers.web.batch_bodies import CONTENT_TYPES, BatchBodies, is_batch
from lmi_handlers.web.body_dialects import BodyDialects
from lmi_handlers.web.exchange import Exchange
from lmi_handlers.web.identity import check_no_session
from lmi_handlers.web.sessions import Sessions


class InvocationsView:
    """The view of the invoke routes."""

    def __init__(self, model: ServedModel, endpoint: Invocations, properties: ServingProperties) -> None:
        self._model = model
        self._endpoint = endpoint
        self._default_accept = properties.default_accept or ""
        self._max_request_size = properties.max_request_size
        self._budget = Budget.of(properties)
        self._dialects = BodyDialects(model, endpoint, properties)
        self._batches = BatchBodies(model, endpoint, self._dialects, properties)
        self._sessions = Sessions(properties, model.runtime_dir)

    def invoke(self, model: str | None = None, version: str | None = None) -> Response:  # noqa: ARG002  only one
        """Answer `POST /invocations`, `/predictions/<model>` or `/models/<model>/invoke`."""
        exchange = Exchange(self._endpoint.native, takes_session=True)
        try:
            self._check_model(model or exchange.argument("model_name"))
            payload = self._payload(exchange)
            if payload.content_type in CONTENT_TYPES:
                self._budget.check_lines(payload.data)
                exchange.hurries = False  # a line has no header that could say that its text was cut
                if is_batch(payload.data):
                    if exchange.explains is not None:
                        raise UnsupportedFeature("several JSON lines are not explained: send one")
                    why = "JSON lines belong to no session: send each as a request of its own"
                    check_no_session(exchange.http.headers, why)
                    lines = self._batches.lines(exchange, payload)
                    return exchange.stream(next(lines), lines, CONTENT_TYPES[0])
            payload = self._dialects.checked(payload, is_json=exchange.http.is_json)
            if exchange.explains is None and (response := self._sessions.answer(exchange, payload)) is not None:
                return response
            formatted, exchange.dialect, change = self._dialects.choose(exchange, payload, exchange.usage)
            if formatted is not payload and self._model.continues:
                exchange.keep_continuation(payload)
            return exchange.generate(self._model, formatted, change, self._sessions.entry(exchange))
        except ModelNotFound as error:
            body = front_end_json({"code": 404, "type": "ModelNotFoundException", "message": str(error)})
            return exchange.close(Response(body, 404, content_type="application/json"), error)
        except LMIError as error:
            return exchange.refuse(error)

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self._model.name:
            raise ModelNotFound(f"Model or workflow not found: {name[:200]}")

    def _payload(self, exchange: Exchange) -> Payload:
        headers = exchange.http.headers
        adapter = headers.get(ADAPTER_IDENTIFIER)
        return Payload(
            data=exchange.body(self._max_request_size),
            request_id=exchange.request_id,
            content_type=exchange.http.mimetype,
            accept=headers.get("Accept", self._default_accept).replace("*/*", self._default_accept),
            stream=exchange.forwarded_api == "InvokeEndpointWithResponseStream",
            # "" means the base model, as in a body.
            adapter=adapter or exchange.argument("adapter") or None,
            adapter_field=ADAPTER_IDENTIFIER if adapter else "adapter",
        )
