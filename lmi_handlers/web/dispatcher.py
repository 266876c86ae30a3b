"""The WSGI application of a server with several models: chooses the model of each request."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote

from flask import Flask

from lmi_handlers.apis.server import DOCUMENT_PATHS
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import InvalidRequest, LMIError
from lmi_handlers.core.event_loop import RunBeside
from lmi_handlers.core.json_shape import outer_text
from lmi_handlers.core.request_path import path_text
from lmi_handlers.models.held_model import HeldModel, uses_model
from lmi_handlers.models.model_apps import ModelApps
from lmi_handlers.web.access_control import AccessControl
from lmi_handlers.web.arriving_bodies import ArrivingBodies
from lmi_handlers.web.connection import client_connected
from lmi_handlers.web.request_path import PathReader

REFUSAL = "lmi.refusal"
"""In the WSGI environment: the `Refusal` that the front application answers with."""

_OF_SERVER = re.compile(
    r"/(ping|health|metrics|invocations-bidirectional-stream|endpoints/.*|v1/models(/.*)?|models(/(?!.*/(invoke|adapters)(/|$)).*)?)/?"
)
"""Paths that are not about one model. Those of adapters belong to their model."""
_NAMED = re.compile(r"/(?:predictions|models)/([^/]+)(?:/|$)")
_TARGET = "HTTP_X_AMZN_SAGEMAKER_TARGET_MODEL"
_ARCHIVE = ".tar.gz"
_FIELD = "model"
"""The field of OpenAI's, vLLM's and TEI's bodies that names the model."""


class Refusal(NamedTuple):
    """The refusal of a request that arrived at the monotonic time `arrived`. `model` is the one it names, or ""."""

    error: LMIError
    model: str
    arrived: float


class Dispatcher:
    """Passes each request to the application of its model, and those about the server itself to `front`.

    A model is named in the path, in the query (`model_name`), in SageMaker's `X-Amzn-SageMaker-Target-Model` header or in
    the field `model` of a JSON body. A name in a body that no model has is the model's own business: it may be that of an
    adapter.
    """

    def __init__(
        self,
        front: Flask,
        apps: ModelApps,
        access: AccessControl,
        properties: ServingProperties,
        is_for_front: Callable[[str, Mapping[str, Any]], bool] = lambda path, environ: False,  # noqa: ARG005
    ) -> None:
        """`is_for_front` tells by path and environment of further requests that they are about the server itself."""
        self._front = front
        self._is_for_front = is_for_front
        self._answer = front.wsgi_app
        front.wsgi_app = PathReader(self._dispatch)  # type: ignore[method-assign]  # Flask's place for WSGI middleware
        self._apps = apps
        self._access = access
        self._max_request_size = properties.max_request_size
        self._max_objects = properties.max_json_containers
        self._bodies: ArrivingBodies = front.extensions["lmi_bodies"]

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer a request."""
        return self._front.wsgi_app(environ, start_response)

    def _dispatch(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = path_text(environ)
        if _OF_SERVER.fullmatch(path) or environ["REQUEST_METHOD"] == "OPTIONS" or self._is_for_front(path, environ):
            return self._answer(environ, start_response)
        arrived, name = time.monotonic(), None
        try:
            name = self._model_named(environ, path)
            found = None if name is None else self._find(environ, name)
        except LMIError as error:
            environ[REFUSAL] = Refusal(error, name or "", arrived)
            found = None
        return self._answer(environ, start_response) if found is None else found.answer(environ, start_response)

    def use_threads(self, run_beside: RunBeside) -> None:
        """Run long work with `run_beside`, off the event loop."""
        self._apps.use_threads(run_beside)

    def start_draining(self) -> None:
        """Make `/ping` report that the worker is shutting down."""
        self._apps.start_draining()

    def end_draining(self) -> None:
        """Fail all requests that are still in flight."""
        self._apps.end_draining()

    def _model_named(self, environ: dict[str, Any], path: str) -> str | None:
        """Return the name of a request's model, or None if `front` answers. Raises the error that it answers with."""
        with self._front.request_context(environ) as context:
            if not self._access.admits():
                return None
            return self._name(environ, path, lambda: self._read(environ, context.request))

    def _find(self, environ: dict[str, Any], name: str) -> HeldModel:
        """Return the model of this name. Raises the error that `front` answers with."""
        if not uses_model(environ):
            return self._apps.find(name)
        return self._apps.find_awake(name, partial(client_connected, environ))

    def _name(self, environ: dict[str, Any], path: str, read: Callable[[], bytes]) -> str | None:
        if (match := _NAMED.match(path)) is not None:
            return str(match[1])
        query: str = environ.get("QUERY_STRING", "")
        if names := parse_qs(query).get("model_name"):
            return names[0]
        models = self._apps.models or {}
        target: str = unquote(environ.get(_TARGET, ""))
        if target:
            last: str = target.rpartition("/")[2]
            return next((name for name in (target, last) if name in models), last.removesuffix(_ARCHIVE))
        default: str | None = self._apps.default
        if default is not None and len(models) == 1:
            return default
        if environ["REQUEST_METHOD"] == "POST" and _may_be_json(environ.get("CONTENT_TYPE", "")):
            named = outer_text(read(), _FIELD, most=self._max_objects)
            found = None if named is None else self._apps.called(named)
            if found is not None or (named is not None and default is None):
                return found or named
        if default is not None:
            return default
        if path in DOCUMENT_PATHS:
            return None  # the front application has a document of its own
        raise InvalidRequest(
            f"Parameter model_name is required: this server has {_listed(models) or 'no models'}",
            code="model_name_required",
        )

    def _read(self, environ: dict[str, Any], request: Any) -> bytes:
        """Read the body, and leave it in the environment for whoever answers."""
        data = self._bodies.whole(request, self._max_request_size)
        environ["wsgi.input"] = io.BytesIO(data)
        environ["CONTENT_LENGTH"] = str(len(data))
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        return data


def _may_be_json(content_type: str) -> bool:
    """Tell whether a body may be JSON. `curl -d` calls it a form, and the invoke routes take that."""
    mimetype = content_type.partition(";")[0].strip().lower()
    return "json" in mimetype or mimetype in ("", "application/x-www-form-urlencoded")


def _listed(names: Iterable[str], limit: int = 10) -> str:
    known = list(names)
    more = f" and {len(known) - limit} more" if len(known) > limit else ""
    return ", ".join(known[:limit]) + more
