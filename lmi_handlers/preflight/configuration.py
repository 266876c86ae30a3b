"""The configuration, with the backend: serving.properties and the environment, read and put together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import msgspec

from backends import declaration, registry
from backends.gpu_memory import smallest_gpu_memory
from backends.selection import FALLBACK, Selection, count_gpus, select_backend
from formatters import available_formatters
from lmi_handlers.config.custom_code import MAX_CALLS, CustomCode
from lmi_handlers.config.declaration import BackendDeclaration
from lmi_handlers.config.decorators import OUTPUT_FORMATTER
from lmi_handlers.config.environment import all_variables
from lmi_handlers.config.formatter_code import FormatterCode, find_formatter_scripts
from lmi_handlers.config.properties import (
    FILE_NAME,
    LoadedProperties,
    ServingProperties,
    examine_properties,
    load_properties,
)
from lmi_handlers.config.replicas import VISIBLE, plan_replicas
from lmi_handlers.config.scripts import Script, find_requirements, find_script
from lmi_handlers.config.server_settings import ServerSettings
from lmi_handlers.config.store_settings import StoreSettings
from lmi_handlers.config.tasks import find_task
from lmi_handlers.config.variables import SM_VLLM, Given, without_options
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.engine.settings import EngineSettings, shadow_dir
from lmi_handlers.model_files.cache_dir import default_cache_dir
from lmi_handlers.model_files.locate import (
    DEFAULT_MODEL_NAME,
    find_config,
    find_gguf,
    has_model_files,
)
from lmi_handlers.model_files.needed import weight_bytes
from lmi_handlers.serving.continuation import given_key
from lmi_handlers.telemetry.settings import TelemetrySettings
from lmi_handlers.web.api_keys import ApiKeys


class AnsweredBy(Enum):
    """The kinds of code that answer a model's requests."""

    ENGINE = "an engine"
    TASK = "transformers, for a task that is not generation"
    OWN_CODE = "the model's own code"


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """The model, the server and the backend. `is_default_model` is true if no model was configured.

    With `custom_code`, the model's own code or a task answers all requests, and no engine is used. `replicas` has the
    GPUs of each engine, "" for those that are visible anyway. With `formatters`, requests and answers of the invoke routes
    pass through them. `shadow` is the configuration of the engine that reads a share of the answers afterwards.
    """

    settings: ServerSettings
    loaded: LoadedProperties
    selection: Selection
    is_default_model: bool
    custom_code: CustomCode | None = None
    replicas: tuple[str, ...] = ("",)
    formatters: FormatterCode | None = None
    shadow: Configuration | None = None

    @property
    def properties(self) -> ServingProperties:
        return self.loaded.properties

    @property
    def model_dir(self) -> Path | None:
        """The model directory, with serving.properties, if there is one."""
        return self.settings.model_dir

    @property
    def chat_streams(self) -> str:
        """The format of streamed chats on the invoke routes, for people, or "" if they do not."""
        if self.custom_code is not None or self.properties.pools:
            return ""
        default, asked = "JSON lines", "text/event-stream"
        if not self.properties.streams_lines:
            default, asked = "server-sent events", "application/jsonlines"
        return f"Chats are streamed on the invoke routes as {default}, unless a request has Accept: {asked}"

    @property
    def backend(self) -> BackendDeclaration:
        return CUSTOM_CODE if self.selection.name == CUSTOM_CODE.name else declaration(self.selection.name)

    @property
    def answered_by(self) -> AnsweredBy:
        """The code that answers requests. A task of ours runs in the processes of custom code, but is not a model's own."""
        if self.custom_code is None:
            return AnsweredBy.ENGINE
        return AnsweredBy.OWN_CODE if self.backend is CUSTOM_CODE else AnsweredBy.TASK

    def engine_settings(self, runtime_dir: str, started: float, model: str = "") -> EngineSettings:
        """Return what the model's engines are started with. `model` is its name if it is one of several, else ""."""
        return EngineSettings(
            runtime_dir=runtime_dir,
            properties=self.properties,
            started=started,
            custom_code=self.custom_code,
            reload=self.settings.reload,
            replicas=self.replicas,
            formatters=self.formatters,
            model=model,
            shadow=None if self.shadow is None else self._shadow_settings(self.shadow, runtime_dir, started, model),
        )

    @staticmethod
    def _shadow_settings(shadow: Configuration, runtime_dir: str, started: float, model: str) -> EngineSettings:
        """Return the settings of one engine, whatever the number of GPUs."""
        settings = shadow.engine_settings(str(shadow_dir(Path(runtime_dir))), started, model)
        return msgspec.structs.replace(settings, replicas=settings.replicas[:1])


CUSTOM_CODE = BackendDeclaration(name="model.py", location="", needs_model=False, passes_options=True)


class StoreConfiguration(msgspec.Struct, frozen=True, kw_only=True):
    """Several models, each with a configuration of its own. `properties` has what concerns the server as a whole."""

    settings: ServerSettings
    store: StoreSettings
    properties: ServingProperties


_OF_ONE_MODEL = ("option.model_id", "option.model_name", "option.entryPoint", "option.task")
"""Options that make no sense for several models at once."""


def read_store(environ: Mapping[str, str]) -> StoreConfiguration | None:
    """Return the configuration of a server with several models, or None if there is one. Raises `ConfigError`."""
    settings = ServerSettings.from_environ(environ)
    if settings.store is None:
        return None
    TelemetrySettings.from_environ(environ)
    ApiKeys(None, settings.api_key_file)
    given_key(environ)
    loaded = load_properties(None, environ, registry(), _given(environ))
    for setting in loaded.explicit:
        if setting.key in _OF_ONE_MODEL:
            raise ConfigError(
                f"{setting.key}={setting.text} is for one model, but {settings.store.directory} is a model store: set it in "
                f"the serving.properties of a model (from {setting.source})"
            )
    return StoreConfiguration(settings=settings, store=settings.store, properties=loaded.properties)


def model_environ(environ: Mapping[str, str], directory: str) -> dict[str, str]:
    """Return the environment with which one of several models is configured as if it were the only one."""
    of_store = {name for declared in all_variables(StoreSettings) for name in declared.variable.names}
    return {name: text for name, text in environ.items() if name not in of_store} | {"LMI_MODEL_DIR": directory}


def encode_configuration(configuration: Configuration) -> bytes:
    """Return the configuration as JSON, for another process of the server."""
    return msgspec.json.encode(configuration, enc_hook=os.fspath)


def decode_configuration(data: bytes) -> Configuration:
    """Return the configuration that `encode_configuration` was given."""
    return msgspec.json.decode(data, type=Configuration, dec_hook=lambda kind, value: kind(value))


def read_configuration(environ: Mapping[str, str], overrides: Mapping[str, str] | None = None) -> Configuration:
    """Read serving.properties and the environment, choose the backend and name the model. Raises `ConfigError`.

    The options in `overrides` take precedence over both.
    """
    configuration = examine_configuration(environ, overrides)
    if configuration.loaded.mistakes:
        raise ConfigError("\n".join(configuration.loaded.mistakes))
    return configuration


def examine_configuration(
    environ: Mapping[str, str], overrides: Mapping[str, str] | None = None, *, is_shadow: bool = False
) -> Configuration:
    """Return what `read_configuration` does, for `checks.mistakes`: those in `loaded` are among them.

    Raises `ConfigError`, with one mistake per line, if one of them leaves nothing that can be examined further.
    """
    loaded = None
    try:
        settings = ServerSettings.from_environ(environ)
        loaded = examine_properties(settings.model_dir, environ, registry(), _given(environ), overrides)
        asked = loaded.properties
        named = asked.entry_point, environ, asked.handler
        if script := find_script(settings.model_dir, *named, asynchronous=asked.has_asynchronous_handler):
            return _with_custom_code(settings, loaded, script, environ)
        loaded = _with_known_backend(loaded)
        config_file = find_config(loaded.properties, default_cache_dir(environ))
        if (task := find_task(loaded.properties, config_file, registry().requested(loaded.properties))) is not None:
            return _with_task(settings, loaded, *task, environ)
        return _with_shadow(_with_engine(settings, loaded, config_file, environ), environ, is_shadow=is_shadow)
    except (ConfigError, OSError) as error:
        cause = unreadable(error) if isinstance(error, OSError) else error
        raise ConfigError("\n".join((*(loaded.mistakes if loaded is not None else ()), str(cause)))) from error


def _with_known_backend(loaded: LoadedProperties) -> LoadedProperties:
    """Let `auto` choose in place of a backend that is not known. That is a mistake, and there may be others."""
    name = registry().requested(loaded.properties)
    try:
        if name != "auto":
            declaration(name)
    except ConfigError as error:
        properties = msgspec.structs.replace(loaded.properties, rolling_batch="auto", backend="auto")
        key = _naming_option(loaded)
        loaded = loaded.with_mistake(key, f"{key}: {error}")
        return msgspec.structs.replace(loaded, properties=properties)
    return loaded


def _naming_option(loaded: LoadedProperties) -> str:
    """Return the option that names the backend."""
    batches = loaded.properties.rolling_batch not in ("auto", "disable")
    return "option.rolling_batch" if batches else "option.backend"


def _with_engine(
    settings: ServerSettings, loaded: LoadedProperties, config_file: Path | None, environ: Mapping[str, str]
) -> Configuration:
    """Return the configuration for a model that an engine serves. Raises `ConfigError`."""
    gguf_file = find_gguf(loaded.properties.model_id, settings.model_dir)
    selection = select_backend(
        loaded.properties, gguf_file, config_file, asked_by=loaded.source(_naming_option(loaded))
    )
    is_default_model = (
        declaration(selection.name).needs_model
        and loaded.properties.model_id is None
        and (settings.model_dir is None or not has_model_files(settings.model_dir))
    )
    formatters = _formatters(settings, loaded)
    if formatters is not None and any(
        loaded.properties.output_formatter == script.output_formatter for script in formatters.scripts
    ):  # it names a function
        properties = msgspec.structs.replace(loaded.properties, output_formatter=None)
        loaded = msgspec.structs.replace(loaded, properties=properties)
    has_default_name = is_default_model or loaded.properties.model_id == DEFAULT_MODEL_NAME
    if has_default_name and not loaded.properties.is_named:
        properties = msgspec.structs.replace(loaded.properties, model_name=DEFAULT_MODEL_NAME)
        loaded = msgspec.structs.replace(loaded, properties=properties)
    backend = declaration(selection.name)
    elsewhere = backend.cpu_only or backend.is_remote(loaded.properties)
    gpus = None if elsewhere else count_gpus(environ, Path("/dev"))
    if backend.replicates and gpus is not None and gpus > 1:
        loaded = _one_gpu(loaded, gguf_file or config_file, environ)
    return Configuration(
        settings=settings,
        loaded=loaded,
        selection=selection,
        is_default_model=is_default_model,
        replicas=plan_replicas(loaded, environ, gpus, splits="tensor_parallel_degree" in backend.reads),
        formatters=formatters,
    )


def _with_shadow(configuration: Configuration, environ: Mapping[str, str], *, is_shadow: bool) -> Configuration:
    """Return the configuration with that of the model's shadow, if it is to have one. Raises `ConfigError`.

    Variables that set options of the model say nothing about its shadow.
    """
    directory = configuration.properties.shadow_model
    if directory is None:
        return configuration
    if is_shadow:
        raise ConfigError(f"option.shadow_model={directory} is set for a shadow, which has none itself")
    path = Path(configuration.properties.model_dir or ".") / Path(directory).expanduser()
    if not (path / FILE_NAME).is_file():
        raise ConfigError(
            f"option.shadow_model={directory} must be a folder with a {FILE_NAME} "
            f"(from {configuration.loaded.source('option.shadow_model')})"
        )
    try:
        shadow = examine_configuration(model_environ(without_options(environ), str(path)), is_shadow=True)
    except ConfigError as error:
        raise ConfigError("\n".join(map(of_shadow, str(error).splitlines()))) from error
    return msgspec.structs.replace(configuration, shadow=shadow)


def of_shadow(mistake: str) -> str:
    """Return an error in the shadow's configuration as one of the model's."""
    return f"option.shadow_model: {mistake}"


_PLACEMENT = ("option.tensor_parallel_degree", "option.pipeline_parallel_degree", "option.device_map", "minWorkers")
"""Options that say how many GPUs an engine takes."""


def _one_gpu(loaded: LoadedProperties, file: Path | None, environ: Mapping[str, str]) -> LoadedProperties:
    """Let an engine take one GPU, unless an option says otherwise or a GPU is known to be too small for the weights.

    `file` is the model's GGUF file or its config.json, or None if it is not here yet.
    """
    if loaded.sets(*_PLACEMENT):
        return loaded
    memory = None if file is None else smallest_gpu_memory(environ.get(VISIBLE))
    if file is not None and memory is not None:
        model = file.parent if file.suffix == ".json" else file
        if weight_bytes(model) > _MOST_WEIGHTS * memory:
            return loaded
    properties = msgspec.structs.replace(loaded.properties, tensor_parallel_degree=1)
    return msgspec.structs.replace(loaded, properties=properties)


_MOST_WEIGHTS = 0.8
"""Share of a GPU's memory that weights may take; the KV cache and activations need the rest."""


def _given(environ: Mapping[str, str]) -> tuple[Given, ...]:
    """Return what the variables of SageMaker's image of vLLM set. Raises `ConfigError`."""
    if not any(name.startswith(SM_VLLM) for name in environ):
        return ()
    from lmi_handlers.migration.vllm_variables import given_to_vllm  # rarely needed, and web workers import this module

    return tuple(given_to_vllm(environ, registry().options))


def _formatters(settings: ServerSettings, loaded: LoadedProperties) -> FormatterCode | None:
    """Return the formatters of a model that an engine serves, if there are any. Raises `ConfigError`."""
    properties = loaded.properties
    directories = script_directories(settings.model_dir, properties)
    name = None if properties.output_formatter in available_formatters() else properties.output_formatter
    scripts = find_formatter_scripts(directories, properties.entry_point, name, with_adapters=properties.enable_lora)
    follows = properties.enable_lora and properties.adapter_management and properties.adapter_formatters
    if not scripts and not follows:
        return None
    if properties.embeds and any(script.output_formatter is not None for script in scripts):
        raise ConfigError(f"{scripts[0].path} has an @{OUTPUT_FORMATTER}: that is not supported for embeddings")
    directory = str(directories[0]) if directories else os.sep
    return FormatterCode(
        scripts=scripts,
        follows_adapters=follows,
        directory=directory,
        properties=_options(loaded) | {"model_dir": directory},
        requirements=_requirements(properties, Path(directory), None),
    )


def _requirements(properties: ServingProperties, directory: Path, model_dir: Path | None) -> str | None:
    """Return the file with the packages to install for the code in `directory`, if they are to be installed."""
    file = find_requirements(directory, model_dir) if properties.install_requirements else None
    return None if file is None else str(file)


def _options(loaded: LoadedProperties) -> dict[str, str]:
    """Return the options as custom code gets them."""
    return {setting.key.removeprefix("option."): setting.given for setting in loaded.explicit if setting.given}


def _with_custom_code(
    settings: ServerSettings, loaded: LoadedProperties, script: Script, environ: Mapping[str, str]
) -> Configuration:
    """Return the configuration for a model whose own code answers requests. That code gets every option.

    Raises `ConfigError` if requests are to be batched, but the code takes one at a time.
    """
    if loaded.properties.batch_size > 1 and not script.is_batched:
        raise ConfigError(
            f"batch_size={loaded.properties.batch_size} is not supported: {script.path} defines {script.defines}, and such "
            "functions answer one request at a time"
        )
    name = CUSTOM_CODE.name
    gpus = count_gpus(environ, Path("/dev")) or 0
    explicit = tuple(
        msgspec.structs.replace(setting, read_by=(*setting.read_by, name)) if setting.read_by else setting
        for setting in loaded.explicit
    )
    return Configuration(
        settings=settings,
        loaded=msgspec.structs.replace(loaded, explicit=explicit),
        selection=Selection(name, f"{script.path} defines {script.defines}"),
        is_default_model=False,
        custom_code=CustomCode(
            loader=script.loader,
            path=str(script.path),
            function=script.function,
            directory=str(script.path.parent),
            properties=_options(loaded) | {"model_dir": str(settings.model_dir or script.path.parent)},
            processes=loaded.properties.min_workers,
            max_processes=_max_processes(loaded.properties, gpus, environ),
            max_calls=loaded.properties.max_rolling_batch_size or MAX_CALLS,
            gpus=gpus,
            requirements=_requirements(loaded.properties, script.path.parent, settings.model_dir),
            adapter_functions=script.adapter_functions,
        ),
    )


def _max_processes(properties: ServingProperties, gpus: int, environ: Mapping[str, str]) -> int:
    """Return how many processes may run the model's own code. Without `maxWorkers`, DJL's default. Raises `ConfigError`."""
    least = properties.min_workers
    if properties.max_workers is not None:
        if properties.max_workers < least:
            raise ConfigError(f"maxWorkers={properties.max_workers} must not be less than minWorkers={least}")
        return properties.max_workers
    threads = environ.get("OMP_NUM_THREADS", "")
    if gpus:
        return least
    return max(least, (os.cpu_count() or 1) // int(threads) if threads.isdecimal() and int(threads) else 2)


def _with_task(
    settings: ServerSettings, loaded: LoadedProperties, task: str, reason: str, environ: Mapping[str, str]
) -> Configuration:
    """Return the configuration for a model that the transformers library runs, for a task of ours."""
    properties = loaded.properties
    gpus = count_gpus(environ, Path("/dev")) or 0
    default = properties.max_workers is None  # a second copy of the model only if it is asked for
    return Configuration(
        settings=settings,
        loaded=loaded,
        selection=Selection(FALLBACK, reason),
        is_default_model=False,
        custom_code=CustomCode(
            loader="lmi_handlers.tasks.handler:load",
            path=f"option.task={task}",
            function=task,
            directory=str(settings.model_dir or Path.cwd()),
            properties={},
            options=properties,
            processes=properties.min_workers,
            max_processes=properties.min_workers if default else _max_processes(properties, gpus, environ),
            gpus=gpus,
        ),
    )


def script_directories(model_dir: Path | None, properties: ServingProperties) -> list[Path]:
    """The directories that may have a model.py: the model directory, and the one that `option.model_id` names."""
    found = (model_dir, local_model(properties))
    return [*dict.fromkeys(directory for directory in found if directory is not None)]


def local_model(properties: ServingProperties) -> Path | None:
    """The directory that `option.model_id` names, or None if it is not a directory."""
    if properties.model_id is None or "://" in properties.model_id:
        return None
    path = Path(properties.model_dir or ".") / Path(properties.model_id).expanduser()
    return path if path.is_dir() else None


def unreadable(error: OSError) -> ConfigError:
    """A `ConfigError` for a directory without read permission, a name that is too long, and the like."""
    name = f"{error.filename}: " if error.filename else ""
    return ConfigError(f"{name}{error.strerror or error}")
