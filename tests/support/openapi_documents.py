"""The OpenAPI document of a configuration, without a server."""

from __future__ import annotations

import json
from typing import Any

from lmi_handlers.apis.api import Context
from lmi_handlers.apis.registry import ServedApis
from lmi_handlers.apis.server import server_routes
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.openapi.document import openapi_document


def document(*, has_api_key: bool = False, checks_names: bool = False, **options: Any) -> dict[str, Any]:
    """Return the document for the echo backend with these options."""
    properties = ServingProperties(**({"model_name": "m", "rolling_batch": "echo"} | options))
    apis = ServedApis(Context(properties=properties))
    routes = [*apis.routes(), *server_routes(bytes, properties)]
    written: dict[str, Any] = json.loads(
        openapi_document(routes, apis.documentation(), properties, has_api_key=has_api_key, checks_names=checks_names)
    )
    return written
