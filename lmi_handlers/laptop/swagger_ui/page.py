"""Swagger UI as a page of the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import Flask

from lmi_handlers.laptop.swagger_ui.routes import add_docs, is_for_docs
from lmi_handlers.preflight.pages import Page, PageContext


class DocsPage(Page):
    """The page at `/docs`."""

    def is_for(self, path: str, environ: Mapping[str, Any]) -> bool:
        return is_for_docs(path, environ)

    def add(self, app: Flask, context: PageContext) -> None:  # noqa: ARG002  the same for every server
        add_docs(app)
