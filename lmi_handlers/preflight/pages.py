"""Pages: the routes that a server has beside its APIs, for people and clients on its machine. They are found by name.

Another distribution adds a page with an entry point in the group `lmi_handlers.pages`, whose value is a `Page`. A page is
imported where it is shown, and nowhere else: a server that others can reach imports none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.config.server_settings import ServerSettings, is_loopback
from lmi_handlers.core.plugins import installed, load_class
from lmi_handlers.model_files.secure_mode import SecureMode
from lmi_handlers.preflight.configuration import Configuration
from lmi_handlers.web.api_keys import key_variable

if TYPE_CHECKING:  # the arbiter must not import Flask before gevent (see web/gevent_worker.py)
    from flask import Flask

    from lmi_handlers.models.model_apps import ModelApps
    from lmi_handlers.serving.served import Served

ENTRY_POINT_GROUP = "lmi_handlers.pages"

LOCAL_RUNTIME = "local-runtime"

PAGES = {
    "console": "lmi_handlers.laptop.console.page:ConsolePage",
    "explain": "lmi_handlers.laptop.explain.page:ExplainPage",
    "docs": "lmi_handlers.laptop.swagger_ui.page:DocsPage",
    LOCAL_RUNTIME: "lmi_handlers.laptop.sagemaker_runtime.page:LocalRuntimePage",
}
"""Names of our own pages to "module:name"."""


class PageContext(msgspec.Struct, frozen=True, kw_only=True):
    """The server of a page, as one of its `workers` web workers sees it.

    `models` returns those that have an application in this worker. `configuration` returns that of a model, and raises
    `KeyError` for an unknown one; None is the default model. `may_manage` tells whether the current request may load and
    unload models. `runtime_dir` is the directory that the server's processes share. `apps` has the models of a server
    with several, otherwise it is None.
    """

    settings: ServerSettings
    properties: ServingProperties
    workers: int
    runtime_dir: Path
    models: Callable[[], Iterable[Served]]
    configuration: Callable[[str | None], Configuration]
    may_manage: Callable[[], bool] = lambda: False
    apps: ModelApps | None = None


class Page(ABC):
    """A page for browsers, or other routes that are no API's. One instance exists per web worker."""

    @abstractmethod
    def add(self, app: Flask, context: PageContext) -> None:
        """Add the routes to `app`. Raises `ConfigError`."""

    def is_for(self, path: str, environ: Mapping[str, Any]) -> bool:  # noqa: ARG002  for subclasses
        """Tell by path and WSGI environment whether a request is for this page, and not for one of several models."""
        return False

    def check(self, settings: ServerSettings) -> None:
        """Check what can be checked before the server starts. Raises `ConfigError`."""


def why_no_pages(option: bool | None, host: str, environ: Mapping[str, str]) -> str:
    """Return why a server that listens on `host` has no pages for browsers, as a clause, or "" if it has.

    `option` is `option.console`. Raises `ConfigError`.
    """
    if option is not None:
        return "" if option else "because of option.console=false"
    if SecureMode.from_environ(environ) is not None:
        return "because of SAGEMAKER_SECURE_MODE"
    if variable := key_variable(environ):
        return f"because an {variable} is set (option.console=true)"
    return "" if is_loopback(host) else "because others than this machine can connect (option.console=true)"


def shown_pages(settings: ServerSettings, properties: ServingProperties, environ: Mapping[str, str]) -> list[Page]:
    """Import all pages that the server has. Raises `ConfigError` if one cannot be imported."""
    others = {point.name: point.value for point in installed(ENTRY_POINT_GROUP)}
    names = [LOCAL_RUNTIME] if settings.local_runtime.enabled else []
    if not why_no_pages(properties.console, settings.host, environ):
        names += dict.fromkeys(name for name in (*PAGES, *others) if name != LOCAL_RUNTIME)
    return [_load(others | PAGES, name) for name in names]


def local_runtime_page() -> Page:
    """Import the page with SageMaker's runtime API."""
    return _load(PAGES, LOCAL_RUNTIME)


def _load(locations: Mapping[str, str], name: str) -> Page:
    return load_class("page", locations, name, Page)()  # type: ignore[type-abstract]  # for a type check
