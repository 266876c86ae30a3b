"""`POST /explain`: hands a body to the view that would answer it, which then says what it would do.

    {"route": "/invocations", "body": {"inputs": "hello"}}

So everything is as in an answer, also an error, until the request would go to the engine. A body that is a text stands for a
`text/plain` one.
"""

from __future__ import annotations

import io
from typing import Any

import msgspec
from flask import Blueprint, Flask, current_app, request
from werkzeug import Response
from werkzeug.exceptions import HTTPException

from lmi_handlers.apis.base import front_end_json
from lmi_handlers.apis.decoding import decode_typed
from lmi_handlers.apis.routes import JSON, TEXT
from lmi_handlers.core.errors import InvalidRequest, LMIError, PayloadTooLarge, UnsupportedFeature
from lmi_handlers.web.exchange import EXPLAINS
from lmi_handlers.web.inner_request import SAGEMAKER_HEADERS, inner_environ
from lmi_handlers.web.routes import EXPLAINABLE

PATH = "/explain"


class _Question(msgspec.Struct, forbid_unknown_fields=True):
    """The request to explain."""

    route: str
    body: msgspec.Raw


def add_explain(app: Flask, max_request_size: int) -> None:
    """Serve the route. A body has at most `max_request_size` bytes."""
    blueprint = Blueprint("explain", __name__)

    @blueprint.post(PATH)
    def explain() -> Response:
        try:
            question = decode_typed(_read(max_request_size), _Question)
            return _explained(question)
        except LMIError as error:
            fields = {"code": 400, "type": "BadRequestException", "message": str(error)}
            return Response(front_end_json(fields), 400, content_type=JSON)

    app.register_blueprint(blueprint)


def _read(limit: int) -> bytes:
    if (request.content_length or 0) > limit:
        raise PayloadTooLarge(f"the request body is larger than max_request_size ({limit} bytes)")
    arriving: Any = current_app.extensions["lmi_bodies"]
    data: bytes = arriving.read(request.stream)
    return data


def _explained(question: _Question) -> Response:
    explainable = current_app.extensions.get(EXPLAINABLE)
    if explainable is None:
        raise UnsupportedFeature("a server with several models does not explain requests")
    claims = explainable.get(_view(question.route))
    if claims is None:
        raise InvalidRequest("no answer is generated there", field="route")
    data, content_type = bytes(question.body), JSON
    if data.startswith(b'"'):
        data, content_type = msgspec.json.decode(data, type=str).encode(), TEXT
    environ = {
        name: value
        for name, value in inner_environ(request.environ, question.route).items()
        if not name.startswith(SAGEMAKER_HEADERS)  # they would continue a session, for example
    }
    environ.pop("HTTP_TRANSFER_ENCODING", None)
    environ |= {
        "wsgi.input": io.BytesIO(data),
        "CONTENT_LENGTH": str(len(data)),
        "CONTENT_TYPE": content_type,
        "QUERY_STRING": "",
        EXPLAINS: claims,
    }
    app: Flask = current_app._get_current_object()  # type: ignore[attr-defined]  # noqa: SLF001  a proxy does not outlive the request
    return Response.from_app(app.wsgi_app, environ)


def _view(route: str) -> str | None:
    """Return the name of the view behind a path, or None."""
    try:
        endpoint, _ = current_app.url_map.bind("").match(route, method="POST")
    except HTTPException:
        return None
    name: str = endpoint
    return name
