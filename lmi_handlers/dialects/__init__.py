"""The wire contracts: a body becomes a `GenerationRequest` and a formatter, an error a response in the dialect's shape."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from lmi_handlers.dialects.base import Dialect
from lmi_handlers.dialects.lmi import LmiDialect
from lmi_handlers.dialects.lmi_dynamic import LmiDynamicDialect
from lmi_handlers.dialects.mindie import MindieDialect
from lmi_handlers.dialects.tgi import CompatDialect, TgiDialect
from lmi_handlers.errors import ConfigError
from lmi_handlers.properties import ServingProperties

NONE: Mapping[str, float] = MappingProxyType({})


def root_dialect(properties: ServingProperties) -> TgiDialect:
    """What `/` speaks, by `option.dialect`."""
    dialects = {"tgi": CompatDialect, "mindie": MindieDialect}
    return dialects[properties.dialect](properties)


def invocations_dialect(properties: ServingProperties, sampled_defaults: Mapping[str, float] = NONE) -> Dialect:
    """What `/invocations` and `/predictions` speak. Raises `ConfigError` where an option of the dialect is wrong.

    `sampled_defaults` are LMI's values, for the backend in use, where a request asks to sample and leaves the rest open.
    """
    if properties.tgi_compat:
        if properties.output_formatter is not None:
            raise ConfigError(
                f"option.output_formatter={properties.output_formatter} conflicts with option.tgi_compat=true: "
                "TGI's requests choose between its two formats with stream"
            )
        return root_dialect(properties)
    dialect = LmiDialect if properties.rolling else LmiDynamicDialect
    return dialect(properties, sampled_defaults)
