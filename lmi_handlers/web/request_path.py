"""Reads the path of each request before the application: access control, routes and pages all see the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flask import Response

from lmi_handlers.apis.base import front_end_json
from lmi_handlers.apis.routes import JSON
from lmi_handlers.core.request_path import BadPath, read_path

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]
"""WSGI's."""


class PathReader:
    """WSGI middleware that puts what `read_path` returns into the environment, and answers 404 if it returns nothing.

    The OpenAPI document names that status for every route whose path has parameters.
    """

    def __init__(self, application: Application) -> None:
        self._application = application

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer a request."""
        try:
            environ["PATH_INFO"] = read_path(environ.get("PATH_INFO", ""))
        except BadPath as error:
            document = {"code": 404, "type": "ResourceNotFoundException", "message": str(error)}
            return Response(front_end_json(document), 404, content_type=JSON)(environ, start_response)
        return self._application(environ, start_response)
