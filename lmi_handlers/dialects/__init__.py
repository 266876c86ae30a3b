"""The wire contracts: a body becomes a `GenerationRequest` and a formatter, an error a response in the dialect's shape."""

from __future__ import annotations

from lmi_handlers.dialects.base import Dialect
from lmi_handlers.dialects.lmi import LmiDialect
from lmi_handlers.dialects.lmi_dynamic import LmiDynamicDialect
from lmi_handlers.properties import ServingProperties


def invocations_dialect(properties: ServingProperties) -> Dialect:
    """What `/invocations` and `/predictions` speak. Raises `ConfigError` where an option of the dialect is wrong."""
    return LmiDialect(properties) if properties.rolling else LmiDynamicDialect(properties)
