"""The invoke routes of a model that is served by its own code: bytes of any type, both ways."""

from __future__ import annotations

from collections.abc import Sequence

from lmi_handlers.apis.adapters.routes import AdaptersApi, management_routes
from lmi_handlers.apis.documentation import Documentation
from lmi_handlers.apis.invocations import model_routes
from lmi_handlers.apis.lmi.dynamic import LmiDynamicDialect
from lmi_handlers.apis.routes import ANY, READING, Endpoint, Kinds, Route
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import DeadlineExceeded, EngineDead, RefusedByCode, RequestFailed

DOCUMENTATION: Documentation = AdaptersApi.documentation
"""The entry of these routes in the OpenAPI document, without the routes."""

_SUMMARY = "Call the function in the model's own code. Its content types are up to that code."


class Invoked(Endpoint, frozen=True, kw_only=True):
    """Answers with what the model's own code returns. Errors are like those of LMI's dynamic batching."""

    errors: Kinds = (*READING, DeadlineExceeded, RequestFailed, EngineDead)


def custom_code_routes(properties: ServingProperties, *, root: bool, adapters: bool) -> Sequence[Route]:
    """Return the routes. With `root`, `POST /` is one: clients of the Hugging Face hub send tasks there.

    With `adapters`, there are those that load and unload adapters, too.
    """
    dialect = LmiDynamicDialect(properties, {})
    endpoint = Invoked(dialects=(dialect,), bodies={ANY: (object,)}, answers={ANY: (object,)})
    routes = [*model_routes(endpoint, properties.name, _SUMMARY)]
    if adapters and properties.adapter_management:
        routes += management_routes(properties, RefusedByCode, EngineDead)
    return [*routes, Route("POST", "/", "compat_task", "Hugging Face", _SUMMARY, endpoint)] if root else routes
