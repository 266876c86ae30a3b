"""The APIs: our own in a table, those of other distributions by entry point."""

from __future__ import annotations

from collections.abc import Sequence

from lmi_handlers.apis.api import Api, Context
from lmi_handlers.apis.documentation import Documentation
from lmi_handlers.apis.invocations import DOCUMENTATION, Invocations, invocations, invoke_routes, root_route
from lmi_handlers.apis.routes import Generation, Route
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.plugins import load_class, with_entry_points

APIS: dict[str, str] = {
    "lmi": "lmi_handlers.apis.lmi.routes:LmiApi",
    "openai": "lmi_handlers.apis.openai.routes:OpenAIApi",
    "tgi": "lmi_handlers.apis.tgi.routes:TgiApi",
    "mindie": "lmi_handlers.apis.mindie.routes:MindieApi",
    "aleph_alpha": "lmi_handlers.apis.aleph_alpha.routes:AlephAlphaApi",
}
"""Name -> location of the class."""

ENTRY_POINT_GROUP = "lmi_handlers.apis"


def available_apis() -> dict[str, str]:
    """Return `APIS` plus the APIs from other distributions' `lmi_handlers.apis` entry points."""
    return with_entry_points(APIS, ENTRY_POINT_GROUP)


def load_api_class(name: str) -> type[Api]:
    """Import the API called `name`. Raises `ConfigError` if it is unknown or cannot be imported."""
    return load_class("API", available_apis(), name, Api)  # type: ignore[type-abstract]  # for a type check


class ServedApis:
    """All APIs of a server. `invocations` answers the invoke routes, and `root` answers `POST /`."""

    def __init__(self, context: Context) -> None:
        """Raises `ConfigError` if an API cannot be imported, or one of its options is wrong."""
        self._properties = context.properties
        self.apis = {name: load_api_class(name)(context) for name in available_apis()}
        chosen = _chosen(self.apis, context.properties)
        by_default = (chosen, self.apis["lmi"], self.apis["tgi"])
        native = next(api.native for api in by_default if api.native is not None)
        root = next(api.root for api in by_default if api.root is not None)
        claims = {field: generation for api in self.apis.values() for field, generation in api.claims.items()}
        self.invocations: Invocations = invocations(native, claims)
        self.root: Generation = root

    def routes(self) -> Sequence[Route]:
        own = [route for api in self.apis.values() for route in api.routes()]
        return [*invoke_routes(self.invocations, self._properties.name), root_route(self.root), *own]

    def documentation(self) -> Sequence[Documentation]:
        """Return what the OpenAPI document says about the APIs besides their routes."""
        return [DOCUMENTATION, *(api.documentation for api in self.apis.values())]


def _chosen(apis: dict[str, Api], properties: ServingProperties) -> Api:
    """Return the API that `option.dialect` names. Raises `ConfigError`."""
    name = properties.dialect
    known = sorted(known for known, api in apis.items() if api.native or api.root)
    if name not in known:
        raise ConfigError(f"option.dialect has value {name!r}: not one of {', '.join(known)}")
    if properties.tgi_compat and properties.output_formatter is not None:
        raise ConfigError(
            f"option.output_formatter={properties.output_formatter} conflicts with option.tgi_compat=true: "
            "TGI's requests choose the format with stream"
        )
    if properties.tgi_compat and apis[name].root is None:
        raise ConfigError(
            f"option.dialect={name} conflicts with option.tgi_compat=true: both choose the dialect of the invoke routes"
        )
    return apis[name]
