"""`ServingProperties` with the options of any backend, and serving.properties files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backends import registry
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.config.properties import LoadedProperties, Setting, load_properties


def serving_properties(**options: Any) -> ServingProperties:
    """Return the properties that `load_properties` makes from these options, shared ones and an engine's own."""
    own = {name: value for name, value in options.items() if name not in ServingProperties.__struct_fields__}
    return ServingProperties(**{name: options[name] for name in options.keys() - own}, engine_options=own)


def load(model_dir: Path | None, text: str = "", **environ: str) -> LoadedProperties:
    """Write serving.properties and load it, with all backends."""
    if model_dir is not None:
        (model_dir / "serving.properties").write_text(text, encoding="utf-8")
    return load_properties(model_dir, environ, registry())


def setting(loaded: LoadedProperties, key: str) -> Setting:
    """Return the setting with this name, explicit or default."""
    return next(item for item in (*loaded.explicit, *loaded.defaults) if item.key == key)
