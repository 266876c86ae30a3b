"""The route as a page of the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import Flask

from lmi_handlers.laptop.explain.routes import add_explain
from lmi_handlers.preflight.pages import Page, PageContext
from lmi_handlers.web.exchange import EXPLAIN_PATH


class ExplainPage(Page):
    """The route `POST /explain`."""

    def add(self, app: Flask, context: PageContext) -> None:
        add_explain(app, context.properties)

    def is_for(self, path: str, environ: Mapping[str, Any]) -> bool:  # noqa: ARG002  the path tells
        """Tell whether a request asks for an explanation. No model answers it with another error."""
        return path == EXPLAIN_PATH
