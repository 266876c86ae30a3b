"""The reference page of all options: `python -m backends.options_page > docs/options.md`."""

from __future__ import annotations

from collections.abc import Iterable

from backends import BACKENDS, declaration
from lmi_handlers.config.declaration import BackendDeclaration
from lmi_handlers.config.environment import all_variables
from lmi_handlers.config.no_effect import NO_EFFECT, TGI_NO_EFFECT
from lmi_handlers.config.not_provided import NOT_PROVIDED
from lmi_handlers.config.option import DeclaredField, DeclaredOption, text_of
from lmi_handlers.config.registry import SERVER, SHARED, Registry
from lmi_handlers.config.server_settings import ServerSettings
from lmi_handlers.config.variables import NATIVE, OVERRIDES, TGI
from lmi_handlers.model_files.secure_mode import SecureMode
from lmi_handlers.telemetry.settings import TelemetrySettings

SETTINGS = (ServerSettings, TelemetrySettings, SecureMode)
"""The settings of the server as a whole."""

_PAGE = """\
# Options

Generated from `lmi_handlers/config/` and `backends/` by
`python -m backends.options_page > docs/options.md`.

Options come from `serving.properties` in the model directory and from environment variables. If an
option is set in several places, the first of these takes precedence. Empty values are ignored.

1. the variables marked *overrides* below
2. `serving.properties`
3. the environment variable `OPTION_NAME`, for `option.name`
4. the variables `SM_VLLM_*` of SageMaker's image of vLLM
5. LMI's other variables
6. the variables of the Text Generation Inference container
7. the default

`lmi check` prints every option that is set, with its value and its source. With `--all` it also
prints the others. It exits with status 1 if `lmi serve` would not start, or if an option is
unknown. A port that is in use only causes a warning.
"""

_ENGINES = """\
An option without a default here, or in the next table, has the engine's own default. A warning is
logged for an option that is set but not read by the backend in use. The `vllm` backend passes it to
vLLM first, which may have an argument of that name.
"""

_BACKENDS = """\
A backend is chosen by its name, in `option.rolling_batch` or `option.backend`, or by one of LMI's
names for it, which are listed here.
"""

_SETTINGS = """\
These are settings of the server as a whole. An option of `lmi serve` takes precedence over its
variable, and the first of two variables over the second. Empty variables count as not set. With a
value that is not allowed, the server does not start. `true` and `false` may be written in any case.
"""

_VARIABLES = """\
`HF_TOKEN` is not an option: the client of the Hugging Face hub reads it from the environment.

`API_KEY` is the key that clients must send: see [tgi.md](tgi.md#headers-keys-origins).
`LMI_ENGINE_KEY` is the key that a [remote engine](remote.md) wants.
`LMI_CONTINUATION_KEY` signs [continuation tokens](continuation.md#the-key-replicas-and-restarts).
Outside containers, the server listens on 127.0.0.1 only. In a container, which it knows by
variables such as `KUBERNETES_SERVICE_HOST`, files such as `/.dockerenv` or `/opt/ml/model`, it
listens on all interfaces. `LMI_HOST` or `--host` decides if set.

`GUNICORN_CMD_ARGS` passes arguments to gunicorn, and `VLLM_LOGGING_LEVEL` (`ERROR` by default) sets
the level of vLLM's own log.

SageMaker's image of vLLM turns variables into flags: `SM_VLLM_MAX_MODEL_LEN=4096` is
`--max-model-len 4096`, `true` is a flag without a value, `false` is no flag and a JSON array is
several values. Here they set the options that these flags stand for ([migrating.md](migrating.md)).
`lmi check` shows which, and what has no effect. With any of them, `option.generation_config` is
`auto`, as vLLM's is, unless it is set.
"""


def options_page() -> str:
    """Return the text of docs/options.md, for our own backends."""
    registry = Registry()
    for name in BACKENDS:
        registry = registry.with_backend(declaration(name))
    backends = list(registry.backends.values())
    shared = [registry.options[name] for name in SHARED]
    own = [declared for declared in registry.options.values() if declared.name not in SHARED]
    return "\n".join(
        [
            _PAGE,
            "## Server\n",
            *_options_table([declared for declared in shared if SERVER in declared.read_by], backends),
            "\n## Engines\n",
            _ENGINES,
            *_options_table([declared for declared in shared if SERVER not in declared.read_by], backends),
            "\n## Engine-specific options\n",
            *_options_table(own, backends),
            "\n## Backends\n",
            _BACKENDS,
            *_backends_table(backends),
            "\n## Environment\n",
            *_environment_table(registry),
            "",
            _SETTINGS,
            *_settings_table(),
            "",
            _VARIABLES,
            "## Accepted, without effect\n",
            "| name | reason |",
            "| --- | --- |",
            *(f"| `{key}` | {why} |" for key, why in NO_EFFECT.items()),
            *(f"| the variable `{name}` of TGI | {why} |" for name, why in TGI_NO_EFFECT.items()),
            "\n## Not supported\n",
            "These would change answers. The server does not start with them, or rejects the request, with an\n"
            "error that names them.\n",
            "| name | where | accepted values | what to do instead |",
            "| --- | --- | --- | --- |",
            *_not_provided_table(),
            "",
        ]
    )


def _options_table(options: Iterable[DeclaredOption], backends: Iterable[BackendDeclaration]) -> list[str]:
    rows = ["| name | value | default | read by | meaning |", "| --- | --- | --- | --- | --- |"]
    for declared in options:
        default = f"`{text_of(declared.default)}`" if declared.default is not None else ""
        meaning = _meaning(declared, [about(declared.name, backends) for about in (_choices, _defaults, _no_effect)])
        cells = (f"`{declared.key}`", _kind(declared), default, ", ".join(declared.read_by), meaning)
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def _settings_table() -> list[str]:
    rows = ["| variable | value | default | option of `lmi serve` | meaning |", "| --- | --- | --- | --- | --- |"]
    for declared in (item for struct in SETTINGS for item in all_variables(struct)):
        variable = declared.variable
        default = f"`{declared.default_text}`" if declared.default_text else ""
        flag = f"`{variable.flag}`" if variable.flag else ""
        names = ", ".join(f"`{name}`" for name in variable.names)
        rows.append(f"| {' | '.join([names, _kind(declared) or 'text', default, flag, variable.help])} |")
    return rows


def _kind(declared: DeclaredField) -> str:
    names = {bool: "`true`, `false`", int: "integer", float: "number", str: "text"}
    words = [*(names[kind] for kind in declared.types), *(f"`{choice}`" for choice in declared.choices)]
    return ", ".join(filter(None, [*words, declared.range]))


def _meaning(declared: DeclaredOption, of_backends: Iterable[str]) -> str:
    option = declared.option
    deprecated = f"Deprecated: {option.deprecated}." if option.deprecated else ""
    aliases = f"Also {', '.join(f'`{alias}`' for alias in option.aliases)}." if option.aliases else ""
    return " ".join(filter(None, [option.help, *of_backends, deprecated, aliases]))


def _choices(name: str, backends: Iterable[BackendDeclaration]) -> str:
    """Return the values of a shared option that only some backends take, as a sentence."""
    words = [
        f"{', '.join(f'`{value}`' for value in backend.choices[name])} on {backend.name}"
        for backend in backends
        if name in backend.choices
    ]
    return f"Supported: {'; '.join(words)}." if words else ""


def _defaults(name: str, backends: Iterable[BackendDeclaration]) -> str:
    """Return the backends' own defaults for a shared option, as a sentence."""
    readers: dict[str, list[str]] = {}
    for backend in backends:
        if name in backend.defaults:
            readers.setdefault(text_of(backend.defaults[name]), []).append(backend.name)
    words = [f"`{value}` on {', '.join(names)}" for value, names in readers.items()]
    return f"Defaults to {'; '.join(words)}." if words else ""


def _no_effect(name: str, backends: Iterable[BackendDeclaration]) -> str:
    """Return the backends that only accept an option, and why, as a sentence."""
    accepting: dict[str, list[str]] = {}
    for backend in backends:
        if name in backend.without_effect:
            accepting.setdefault(backend.without_effect[name], []).append(backend.name)
    words = [f"{', '.join(names)}: {reason}" for reason, names in accepting.items()]
    return f"No effect on {'; '.join(words)}." if words else ""


def _backends_table(backends: Iterable[BackendDeclaration]) -> list[str]:
    rows = ["| name | `option.rolling_batch` | `option.entryPoint` |", "| --- | --- | --- |"]
    for backend in backends:
        words, handlers = (
            ", ".join(f"`{word}`" for word in names) for names in (backend.rolling_batch, backend.handlers)
        )
        rows.append(f"| `{backend.name}` | {words} | {handlers} |")
    return rows


def _environment_table(registry: Registry) -> list[str]:
    rows = ["| variable | option | set by |", "| --- | --- | --- |"]
    for source, variables in (("overrides", OVERRIDES), ("LMI", NATIVE), ("TGI", TGI)):
        for name, variable in variables.items():
            rows.append(f"| `{name}` | `{registry.options[variable.option].key}` | {source} |")
    return rows


def _not_provided_table() -> list[str]:
    names: dict[tuple[str, str, str], list[str]] = {}
    for row in NOT_PROVIDED:
        alike = (row.place.value, ", ".join(f"`{word}`" for word in row.harmless), row.instead)
        names.setdefault(alike, []).append(f"`{row.name}`")
    return [f"| {' | '.join([', '.join(found), *alike])} |" for alike, found in names.items()]


if __name__ == "__main__":
    print(options_page(), end="")
