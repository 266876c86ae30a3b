"""The APIs: our own in a table, those of other distributions by entry point."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from lmi_handlers.apis.api import Api, Context
from lmi_handlers.apis.documentation import Documentation
from lmi_handlers.apis.invocations import DOCUMENTATION, Invocations, invocations, invoke_routes, root_route
from lmi_handlers.apis.routes import Generation, Route
from lmi_handlers.apis.server import server_routes
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import other_task
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.plugins import load_class, one_line, with_entry_points

APIS: dict[str, str] = {
    "lmi": "lmi_handlers.apis.lmi.routes:LmiApi",
    "anthropic": "lmi_handlers.apis.anthropic.routes:AnthropicApi",
    "llama_cpp": "lmi_handlers.apis.llama_cpp.routes:LlamaCppApi",
    "openai": "lmi_handlers.apis.openai.routes:OpenAIApi",
    "tgi": "lmi_handlers.apis.tgi.routes:TgiApi",
    "tei": "lmi_handlers.apis.tei.routes:TeiApi",
    "vllm": "lmi_handlers.apis.vllm.routes:VllmApi",
    "mindie": "lmi_handlers.apis.mindie.routes:MindieApi",
    "aleph_alpha": "lmi_handlers.apis.aleph_alpha.routes:AlephAlphaApi",
    "adapters": "lmi_handlers.apis.adapters.routes:AdaptersApi",
}
"""Name -> location of the class. The first API that claims a field of a body on the invoke routes answers it."""

ENTRY_POINT_GROUP = "lmi_handlers.apis"


def available_apis() -> dict[str, str]:
    """Return `APIS` plus the APIs from other distributions' `lmi_handlers.apis` entry points."""
    return with_entry_points(APIS, ENTRY_POINT_GROUP)


def load_api_class(name: str) -> type[Api]:
    """Import the API called `name`. Raises `ConfigError` if it is unknown or cannot be imported."""
    return load_class("API", available_apis(), name, Api)  # type: ignore[type-abstract]  # for a type check


class ServedApis:
    """All APIs of a server. `invocations` answers the invoke routes, and `root` answers `POST /`.

    `absent` says for each path that only servers with another task have which task that is.
    """

    def __init__(self, context: Context) -> None:
        """Raises `ConfigError` if an API cannot be used, or one of its options is wrong, or two APIs collide."""
        self.apis = {name: _api(name, context) for name in available_apis()}
        chosen = _chosen(self.apis, context.properties)
        served = context.properties.served_task
        natives = (api.native for api in (chosen, self.apis["lmi"]))
        native = next(native for native in natives if native is not None and native.task in (None, served))
        # TEI's has `POST /` only if the server embeds or scores texts.
        root = next(api.root for api in (self.apis["tei"], chosen, self.apis["tgi"]) if api.root is not None)
        claims = {field: generation for api in self.apis.values() for field, generation in api.claims.items()}
        self.invocations: Invocations = invocations(native, claims, served)
        self.root: Generation = root
        shared = [
            *invoke_routes(self.invocations, context.properties),
            root_route(root, context.properties),
        ]
        own = {name: _routes(name, api) for name, api in self.apis.items()}
        _check_collisions(self.apis, {"server": [*shared, *server_routes(bytes, context.properties)], **own})
        declared = [route for routes in own.values() for route in routes]
        others = [(route.path, task) for route in declared if (task := route.endpoint.task) not in (None, served)]
        self.absent: dict[str, str] = {path: other_task(served, task) for path, task in others if task is not None}
        self._routes = [*shared, *(route for route in declared if route.endpoint.task in (None, served))]

    def routes(self) -> Sequence[Route]:
        return self._routes

    def documentation(self) -> Sequence[Documentation]:
        """Return what the OpenAPI document says about the APIs besides their routes."""
        return [DOCUMENTATION, *(api.documentation for api in self.apis.values())]


def _api(name: str, context: Context) -> Api:
    kind = load_api_class(name)
    try:
        return kind(context)
    except ConfigError:
        raise
    except Exception as error:  # third-party code may raise anything
        raise ConfigError(f"API {name!r} cannot be created: {one_line(error)}") from error


def _routes(name: str, api: Api) -> Sequence[Route]:
    try:
        routes = list(api.routes())
    except Exception as error:  # third-party code may raise anything
        raise ConfigError(f"API {name!r} cannot declare its routes: {one_line(error)}") from error
    for route in routes:
        declared = {parameter.name for parameter in route.parameters if parameter.place == "path"}
        if not route.path.startswith("/") or set(re.findall(r"{(.*?)}", route.path)) != declared:
            raise ConfigError(
                f"API {name!r} has the path {route.path!r}: it must begin with a slash, and its parameters must be declared"
            )
    return routes


def _check_collisions(apis: Mapping[str, Api], routes: Mapping[str, Sequence[Route]]) -> None:
    """Raise `ConfigError` if two APIs have the same route, operation id, claim or path prefix."""
    for what, declared in (
        ("route", {name: [f"{route.method} {route.path}" for route in own] for name, own in routes.items()}),
        ("operation id", {name: [route.name for route in own] for name, own in routes.items()}),
        ("claim", {name: api.claims for name, api in apis.items()}),
        ("path prefix", {name: api.prefixes for name, api in apis.items()}),
    ):
        owners: dict[str, str] = {}
        for name, items in declared.items():
            for item in items:
                if item in owners:
                    raise ConfigError(f"APIs {owners[item]!r} and {name!r} have the same {what}: {item}")
                owners[item] = name


def _chosen(apis: Mapping[str, Api], properties: ServingProperties) -> Api:
    """Return the API that `option.dialect` names. Raises `ConfigError`."""
    known = sorted(name for name, api in apis.items() if api.native or api.root)
    name = next((name for name in known if name.lower() == properties.dialect.lower()), None)
    if name is None:
        raise ConfigError(f"option.dialect has value {properties.dialect!r}: must be one of {', '.join(known)}")
    if properties.tgi_compat and apis[name].root is None:
        raise ConfigError(
            f"option.dialect={name} conflicts with option.tgi_compat=true: both choose the dialect of the invoke routes"
        )
    formatters = apis[name].formatters
    if properties.tgi_compat and properties.output_formatter not in (None, *formatters):
        instead = f"it has {' and '.join(formatters)}" if formatters else "requests choose the format with stream"
        raise ConfigError(
            f"option.output_formatter={properties.output_formatter} conflicts with option.tgi_compat=true, which chooses "
            f"the API of option.dialect={name}: {instead}"
        )
    return apis[name]
