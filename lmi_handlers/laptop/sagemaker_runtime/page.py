"""The local runtime as a page of the server: SageMaker's runtime API below `/endpoints`."""

from __future__ import annotations

from flask import Flask

from lmi_handlers.config.server_settings import ServerSettings
from lmi_handlers.laptop.sagemaker_runtime.routes import check_local_runtime, local_runtime
from lmi_handlers.preflight.pages import Page, PageContext


class LocalRuntimePage(Page):
    """The routes of `lmi serve --local-runtime`."""

    def check(self, settings: ServerSettings) -> None:
        if settings.local_runtime.enabled:
            check_local_runtime(settings.local_runtime)

    def add(self, app: Flask, context: PageContext) -> None:
        if context.settings.local_runtime.enabled:
            app.register_blueprint(local_runtime(context.settings.local_runtime, workers=context.workers))
