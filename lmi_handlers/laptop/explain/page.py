"""The route as a page of the server."""

from __future__ import annotations

from flask import Flask

from lmi_handlers.laptop.explain.routes import add_explain
from lmi_handlers.preflight.pages import Page, PageContext


class ExplainPage(Page):
    """The route `POST /explain`."""

    def add(self, app: Flask, context: PageContext) -> None:
        add_explain(app, context.properties)
