"""The checks that need no loaded model, shared by `lmi serve` and `lmi check`."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from backends import declaration, load_backend_class, registry
from backends.paged.memory import free_memory, warn_of_excess
from backends.paged.options import PagedOptions
from backends.selection import (
    Selection,
    check_format,
    check_gpus,
    check_installed,
    count_gpus,
    find_gpu,
    select_backend,
)
from lmi_handlers.apis.api import Context
from lmi_handlers.apis.registry import ServedApis
from lmi_handlers.config.custom_code import FUNCTION, CustomCode, check_siblings, find_script
from lmi_handlers.config.declaration import BackendDeclaration
from lmi_handlers.config.not_provided import check_scripts
from lmi_handlers.config.properties import LoadedProperties, ServingProperties, load_properties
from lmi_handlers.config.server_settings import ServerSettings, netloc, parse_origins
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.engine.adapters import find_adapters
from lmi_handlers.engine.cache_dir import default_cache_dir
from lmi_handlers.engine.model_files import (
    DEFAULT_MODEL_NAME,
    check_conversion,
    find_config,
    find_gguf,
    has_model_files,
    locate_model,
)
from lmi_handlers.log import log_format
from lmi_handlers.media.images import image_loader
from lmi_handlers.text.bundle import read_chat_template
from lmi_handlers.text.output_parsers.reasoning import choose_reasoning_format, reasoning_format
from lmi_handlers.text.output_parsers.tool_formats import choose_tool_format


class PortTaken(ConfigError):
    """The port is in use, perhaps by this very server."""


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """What to serve, where, and with which backend. `is_default_model` is true if no model was configured.

    With `custom_code`, the model's own code answers all requests, and no backend is used.
    """

    settings: ServerSettings
    loaded: LoadedProperties
    selection: Selection
    is_default_model: bool
    custom_code: CustomCode | None = None

    @property
    def properties(self) -> ServingProperties:
        return self.loaded.properties

    @property
    def model_dir(self) -> Path | None:
        """The model directory, with serving.properties, if there is one."""
        return self.settings.model_dir

    @property
    def backend(self) -> BackendDeclaration:
        return declaration(self.selection.name) if self.custom_code is None else _CUSTOM_CODE


_CUSTOM_CODE = BackendDeclaration(name="model.py", location="", needs_model=False, passes_options=True)


def read_configuration(environ: Mapping[str, str]) -> Configuration:
    """Read serving.properties and the environment, choose the backend and name the model. Raises `ConfigError`."""
    try:
        log_format(environ, sys.stderr)
        settings = ServerSettings.from_environ(environ)
        loaded = load_properties(settings.model_dir, environ, registry())
        if (script := find_script(settings.model_dir, loaded.properties.entry_point)) is not None:
            return _with_custom_code(settings, loaded, script, count_gpus(environ, Path("/dev")) or 0)
        selection = select_backend(
            loaded.properties,
            find_gguf(loaded.properties.model_id, settings.model_dir),
            find_config(loaded.properties, default_cache_dir(environ)),
        )
        is_default_model = (
            declaration(selection.name).needs_model
            and loaded.properties.model_id is None
            and (settings.model_dir is None or not has_model_files(settings.model_dir))
        )
    except OSError as error:
        raise _unreadable(error) from error
    if is_default_model and not any(setting.key == "option.model_name" for setting in loaded.explicit):
        properties = msgspec.structs.replace(loaded.properties, model_name=DEFAULT_MODEL_NAME)
        loaded = msgspec.structs.replace(loaded, properties=properties)
    return Configuration(settings=settings, loaded=loaded, selection=selection, is_default_model=is_default_model)


def _with_custom_code(settings: ServerSettings, loaded: LoadedProperties, script: Path, gpus: int) -> Configuration:
    """Return the configuration for a model whose own code answers requests. That code gets every option."""
    name = _CUSTOM_CODE.name
    options = {setting.key.removeprefix("option."): setting.given for setting in loaded.explicit if setting.given}
    explicit = tuple(
        msgspec.structs.replace(setting, read_by=(*setting.read_by, name)) if setting.read_by else setting
        for setting in loaded.explicit
    )
    return Configuration(
        settings=settings,
        loaded=msgspec.structs.replace(loaded, explicit=explicit),
        selection=Selection(name, f"{script} defines {FUNCTION}(inputs)"),
        is_default_model=False,
        custom_code=CustomCode(
            path=str(script),
            properties=options | {"model_dir": str(settings.model_dir or script.parent)},
            processes=loaded.properties.min_workers,
            gpus=gpus,
        ),
    )


def mistakes(configuration: Configuration, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the errors that prevent serving, as far as they can be found without loading the model."""
    found = (_mistake(check, configuration, environ) for check in _checks(configuration))
    return tuple(dict.fromkeys(filter(None, found)))


def warnings(configuration: Configuration) -> Iterator[str]:
    """Yield warnings: the server starts, but may not do what was intended."""
    properties, backend = configuration.properties, configuration.backend
    if configuration.is_default_model:
        where = "" if configuration.model_dir is None else f" and {configuration.model_dir} holds no model"
        name = "" if properties.name == DEFAULT_MODEL_NAME else f", under the name {properties.name}"
        yield f"option.model_id is not set{where}: serving the default model, {DEFAULT_MODEL_NAME}{name}"
    if configuration.model_dir is not None and (configuration.model_dir / "requirements.txt").exists():
        yield f"{configuration.model_dir / 'requirements.txt'} is ignored: install packages in the image"
    yield from configuration.loaded.warnings(backend)
    if excess := _excess_memory(properties, backend):
        yield excess
    yield from registry().unusable.values()


def _excess_memory(properties: ServingProperties, backend: BackendDeclaration) -> str:
    """Return a warning if a KV cache of ours is to take more memory than is free, else ""."""
    on_cpu = backend.cpu_only or find_gpu(os.environ, Path("/dev")) is None
    if properties.kv_cache_memory_bytes is None or not issubclass(backend.options, PagedOptions) or not on_cpu:
        return ""
    with contextlib.suppress(ConfigError):  # not a size, which loading reports
        return warn_of_excess(properties.kv_cache_memory_bytes, free_memory())
    return ""


def check_engine(configuration: Configuration) -> None:
    """Import the engine if options are passed to it, and let it check them. Raises `ConfigError`.

    `lmi serve` leaves this to the engine process, which imports the engine anyway.
    """
    if configuration.custom_code is None and configuration.backend.passes_options:
        properties = configuration.properties
        load_backend_class(configuration.selection.name, embeds=properties.embeds).check_options(properties)


def check_port(host: str, port: int) -> None:
    """Check that the address can be listened on. gunicorn alone would retry for five seconds before it failed.

    Raises `PortTaken` if the port is in use, `ConfigError` if it cannot be used for another reason.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            reason = error.strerror or os.strerror(error.errno or errno.EADDRNOTAVAIL)
            kind = PortTaken if error.errno == errno.EADDRINUSE else ConfigError
            raise kind(f"{netloc(host, port)}: {reason} (--host, --port)") from error


def _check_apis(configuration: Configuration, environ: Mapping[str, str]) -> None:  # noqa: ARG001
    ServedApis(Context(properties=configuration.properties))


def _check_text_options(configuration: Configuration, environ: Mapping[str, str]) -> None:  # noqa: ARG001
    properties = configuration.properties
    choose_tool_format("", properties.tool_call_parser)
    image_loader(properties)
    if properties.reasoning_parser is not None:
        reasoning_format(properties.reasoning_parser)


def _check_origins(configuration: Configuration, environ: Mapping[str, str]) -> None:  # noqa: ARG001
    parse_origins(configuration.properties.cors_allowed_origin or "")


def _check_scripts(configuration: Configuration, environ: Mapping[str, str]) -> None:  # noqa: ARG001
    for directory in (configuration.model_dir, _local_model(configuration.properties)):
        if directory is not None:
            check_scripts(directory)


def _check_custom_code(configuration: Configuration, environ: Mapping[str, str]) -> None:  # noqa: ARG001
    if configuration.custom_code is not None:
        check_siblings(configuration.custom_code.directory)


def _check_installed(configuration: Configuration, environ: Mapping[str, str]) -> None:  # noqa: ARG001
    check_installed(configuration.backend)


def _check_gpus(configuration: Configuration, environ: Mapping[str, str]) -> None:
    check_gpus(configuration.properties, configuration.backend, count_gpus(environ, Path("/dev")))


def _check_model(configuration: Configuration, environ: Mapping[str, str]) -> None:
    properties = configuration.properties
    path = None
    if configuration.backend.needs_model or properties.model_id is not None:
        path = locate_model(
            properties.model_id,
            model_dir=configuration.model_dir,
            revision=properties.revision,
            cache_dir=default_cache_dir(environ),
        )
        gguf_file = path if path is not None and path.is_file() else None
        check_format(configuration.backend, gguf_file)
        if gguf_file is not None and configuration.backend.reads_gguf is None:
            check_conversion(gguf_file, default_cache_dir(environ))
    find_adapters(properties, path)


def _check_chat_template(configuration: Configuration, environ: Mapping[str, str]) -> None:  # noqa: ARG001
    properties = configuration.properties
    if properties.chat_template is not None:
        template = read_chat_template(properties.chat_template, configuration.model_dir)
        choose_reasoning_format(template, properties.reasoning_parser, enabled=properties.enable_reasoning)


_Check = Callable[[Configuration, Mapping[str, str]], None]

_CHECKS: tuple[_Check, ...] = (
    _check_apis,
    _check_text_options,
    _check_origins,
    _check_scripts,
    _check_installed,
    _check_gpus,
    _check_model,
    _check_chat_template,
)


_CHECKS_OF_CUSTOM_CODE: tuple[_Check, ...] = (_check_custom_code, _check_origins)


def _checks(configuration: Configuration) -> tuple[_Check, ...]:
    return _CHECKS if configuration.custom_code is None else _CHECKS_OF_CUSTOM_CODE


def _mistake(check: _Check, configuration: Configuration, environ: Mapping[str, str]) -> str:
    """Return the error that `check` finds, or ""."""
    try:
        check(configuration, environ)
    except ConfigError as error:
        return str(error)
    except OSError as error:
        return str(_unreadable(error))
    return ""


def _local_model(properties: ServingProperties) -> Path | None:
    """The directory that `option.model_id` names, or None if it is not a directory."""
    if properties.model_id is None or "://" in properties.model_id:
        return None
    path = Path(properties.model_dir or ".") / Path(properties.model_id).expanduser()
    return path if path.is_dir() else None


def _unreadable(error: OSError) -> ConfigError:
    """A `ConfigError` for a directory without read permission, a name that is too long, and the like."""
    name = f"{error.filename}: " if error.filename else ""
    return ConfigError(f"{name}{error.strerror or error}")
