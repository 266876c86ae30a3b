"""`GET /shout`: a page for browsers, on servers that only their own machine can reach."""

from __future__ import annotations

from flask import Flask

from lmi_handlers.preflight.pages import Page, PageContext


class ShoutPage(Page):
    """Says who shouts."""

    def add(self, app: Flask, context: PageContext) -> None:
        """Add the route."""

        @app.get("/shout")
        def shout_page() -> str:
            names = ", ".join(model.name for model in context.models())
            return f"<!doctype html><title>Shout</title><p>{names} SHOUTS!</p>"
