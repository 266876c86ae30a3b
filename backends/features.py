"""What each backend does not support, for the docs and the web workers. Reads packages without importing engines.

`python -m backends.features > docs/backends.md` writes the reference page.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from types import ModuleType

from backends import BACKENDS
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.sampling_params import SamplingParams

OF_THE_TEXT_LAYER = ("n", "stop", "include_stop_str_in_output", "skip_special_tokens")
"""Fields of `SamplingParams` that the server handles itself, for every backend."""

OF_REQUESTS = ("adapters", "priority")
"""Features of a request outside `SamplingParams`."""


def unsupported(backend: str) -> Mapping[str, str]:
    """Return field -> why it is not supported. Empty for third-party backends, which report this once loaded."""
    return getattr(_package(backend), "UNSUPPORTED", {})


def sampled_defaults(backend: str) -> Mapping[str, float]:
    """Return the defaults that LMI uses with this backend for sampling parameters that a sampling request omits."""
    return getattr(_package(backend), "SAMPLED_DEFAULTS", {})


def passes_options(backend: str) -> bool:
    """Tell whether undeclared options are passed on to the engine."""
    return bool(getattr(_package(backend), "PASSES_OPTIONS", False))


def needs_model(backend: str) -> bool:
    """Tell whether the backend needs a model. False for third-party backends, which are asked once imported."""
    return backend in BACKENDS and bool(getattr(_package(backend), "NEEDS_MODEL", True))


def check_installed(backend: str) -> None:
    """Raise `ConfigError` if a library that the backend imports is not installed. Imports nothing itself.

    A backend's `REQUIRES` lists its libraries. Alternatives are separated by |.
    """
    for library in getattr(_package(backend), "REQUIRES", ()):
        if not any(importlib.util.find_spec(name) for name in library.split("|")):
            extra = getattr(_package(backend), "EXTRA", backend)
            raise ConfigError(
                f"backend {backend} is not installed: no module {library.replace('|', ' or ')}; "
                f"pip install 'lmi-handlers[{extra}]'"
            )


def conditional(backend: str) -> Mapping[str, str]:
    """Return field -> when the backend rejects it, for fields that it otherwise supports."""
    return getattr(_package(backend), "CONDITIONAL", {})


def only_on_a_gpu(backend: str) -> tuple[str, ...]:
    """Return what has not been tested because the tests run on CPUs."""
    return getattr(_package(backend), "ONLY_ON_A_GPU", ())


def _package(backend: str) -> ModuleType | None:
    return importlib.import_module(f"backends.{backend}") if backend in BACKENDS else None


_PAGE = """\
# What the backends can do

Generated from `backends/` by `python -m backends.features > docs/backends.md`.

Fields have vLLM's names; [lmi.md](lmi.md) says how LMI's clients spell them. A request for what the backend in use cannot
do is refused with a 4xx that names the field and the backend; nothing is dropped in silence. `echo` has no model: it takes
every field that is yes here, and looks at the token limits, the stop ids and the log probabilities.

| field |"""


def features_page() -> str:
    """Return the text of docs/backends.md."""
    tables = {name: unsupported(name) for name in BACKENDS}
    lines = [f"{_PAGE} {' | '.join(tables)} |", f"| --- |{' --- |' * len(tables)}"]
    for field in (*SamplingParams.__struct_fields__, *OF_REQUESTS):
        cells = ["no" if field in table else "yes" for table in tables.values()]
        lines.append(f"| `{field}` | {' | '.join(cells)} |")
    lines += [
        "",
        f"Every backend has {_listed(OF_THE_TEXT_LAYER)} and beam search from the server itself.",
        "",
        "## Why not",
        "",
    ]
    lines += [f"* {name}, `{field}`: {why}." for name, table in tables.items() for field, why in table.items()]
    lines += ["", "## Depending on the configuration", ""]
    lines += [f"* {name}, `{field}`: {when}." for name in BACKENDS for field, when in conditional(name).items()]
    for name in BACKENDS:
        if unknown := only_on_a_gpu(name):
            lines += ["", f"## Not tested without a GPU: {name}", "", *(f"* {item}" for item in unknown)]
    return "\n".join([*lines, ""])


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    print(features_page(), end="")
