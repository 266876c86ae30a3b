"""`POST /explain`: hands a body to the view that would answer it. The view describes the request instead.

    {"route": "/invocations", "body": {"inputs": "hello"}}

So everything is as in an answer, also an error, until the request would go to the engine. A body that is a text stands for a
`text/plain` one.
"""

from __future__ import annotations

import io

import msgspec
from flask import Blueprint, Flask, current_app, request
from werkzeug import Response
from werkzeug.exceptions import HTTPException

from lmi_handlers.apis.decoding import decode_typed
from lmi_handlers.apis.management import ManagementDialect
from lmi_handlers.apis.routes import JSON, TEXT
from lmi_handlers.config.budget import Budget
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import InvalidRequest, LMIError, UnsupportedFeature
from lmi_handlers.web.exchange import EXPLAIN_PATH, EXPLAINS, Exchange
from lmi_handlers.web.inner_request import SAGEMAKER_HEADERS, inner_environ
from lmi_handlers.web.routes import EXPLAINABLE


class _Question(msgspec.Struct, forbid_unknown_fields=True):
    """The request to explain."""

    route: str
    body: msgspec.Raw


def add_explain(app: Flask, properties: ServingProperties) -> None:
    """Serve the route. Its bodies have the limits of all others."""
    blueprint, dialect, budget = Blueprint("explain", __name__), ManagementDialect(), Budget.of(properties)

    @blueprint.post(EXPLAIN_PATH)
    def explain() -> Response:
        if EXPLAINABLE not in current_app.extensions:
            reply = dialect.error(UnsupportedFeature("a server with several models does not explain requests"))
            return Response(reply.body, reply.status, content_type=reply.content_type)
        exchange = Exchange(dialect, counts=False)
        try:
            data = exchange.any_body(properties.max_request_size)
            budget.check_json(data)
            return _explained(decode_typed(data, _Question))
        except LMIError as error:
            return exchange.refuse(error)

    app.register_blueprint(blueprint)


def _explained(question: _Question) -> Response:
    claims = current_app.extensions[EXPLAINABLE].get(_view(question.route))
    if claims is None:
        raise InvalidRequest("no answer is generated there", field="route")
    data, content_type = bytes(question.body), JSON
    if data.startswith(b'"'):
        data, content_type = decode_typed(data, str, prefix="body").encode(), TEXT
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
    if not route.isascii():  # none has such a name, and a WSGI environment has one character per byte
        return None
    try:
        endpoint, _ = current_app.url_map.bind("").match(route, method="POST")
    except HTTPException:
        return None
    name: str = endpoint
    return name
