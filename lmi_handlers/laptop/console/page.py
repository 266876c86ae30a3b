"""The console as a page of the server."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from flask import Flask

from lmi_handlers.laptop.console.configuration import ConfigurationView, configuration_view
from lmi_handlers.laptop.console.routes import add_console, is_for_console
from lmi_handlers.laptop.console.state import Watched
from lmi_handlers.preflight.pages import Page, PageContext


class ConsolePage(Page):
    """The page at `/`."""

    def is_for(self, path: str, environ: Mapping[str, Any]) -> bool:
        return is_for_console(path, environ)

    def add(self, app: Flask, context: PageContext) -> None:
        watched = Watched(
            models=context.models,
            runtime_dir=context.runtime_dir,
            workers=context.workers,
            dialect=context.properties.dialect,
            keeps_prompts=context.properties.console_prompts,
            apps=context.apps,
        )

        def view(name: str | None) -> ConfigurationView:
            return configuration_view(context.configuration(name))

        only = cache(lambda: view(None))  # the configuration of a server's only model stays the same
        add_console(app, watched.snapshot, view if context.apps is not None else lambda _: only(), context.may_manage)
