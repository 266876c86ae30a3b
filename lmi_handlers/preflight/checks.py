"""Checks before a model is loaded, shared by `lmi serve` and `lmi check`."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import signal
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path

from backends import choose_precision, load_backend_class, registry
from backends.paged.memory import free_memory, warn_of_excess
from backends.paged.options import PagedOptions
from backends.selection import check_format, check_gpus, check_installed, count_gpus, find_gpu
from lmi_handlers.apis.api import Context
from lmi_handlers.apis.registry import ServedApis
from lmi_handlers.config.custom_code import (
    ADAPTER_FUNCTIONS,
    REGISTER,
    SCRIPT,
    check_siblings,
    defined_names,
    names_script,
)
from lmi_handlers.config.declaration import BackendDeclaration
from lmi_handlers.config.decorators import INPUT_FORMATTER, OUTPUT_FORMATTER, decorated_functions
from lmi_handlers.config.not_provided import check_scripts
from lmi_handlers.config.properties import FILE_NAME, ServingProperties
from lmi_handlers.config.scripts import find_requirements
from lmi_handlers.config.server_settings import netloc, parse_origins
from lmi_handlers.config.variables import TGI_ALONE, without_options
from lmi_handlers.core.capabilities import NO_MARKS, check_default_budget
from lmi_handlers.core.errors import ConfigError, LMIError, LoadFailed
from lmi_handlers.core.files import temporary_directory
from lmi_handlers.core.gguf import read_gguf_header
from lmi_handlers.core.near_file import did_you_mean
from lmi_handlers.engine.adapters import AdapterSources, find_adapters
from lmi_handlers.engine.formatters_process import check_loading
from lmi_handlers.engine.settings import EngineSettings
from lmi_handlers.media.images import image_loader
from lmi_handlers.media.sounds import sound_loader
from lmi_handlers.model_files.cache_dir import default_cache_dir, model_cache, named_cache_dir
from lmi_handlers.model_files.complete import MAX_JSON
from lmi_handlers.model_files.fetch import preview
from lmi_handlers.model_files.hub import ask_hub
from lmi_handlers.model_files.locate import DEFAULT_MODEL_NAME, check_conversion, find_config, find_gguf, locate_model
from lmi_handlers.model_files.needed import weight_bytes
from lmi_handlers.model_files.pickled import check_weights
from lmi_handlers.model_files.s3_url import is_s3
from lmi_handlers.model_files.secure_mode import SecureMode
from lmi_handlers.preflight.configuration import AnsweredBy, Configuration, of_shadow, script_directories, unreadable
from lmi_handlers.preflight.pages import local_runtime_page
from lmi_handlers.serving.continuation import given_key
from lmi_handlers.telemetry.settings import TelemetrySettings
from lmi_handlers.text.bundle import build_gguf_bundle, build_text_bundle, check_sampling_defaults, read_chat_template
from lmi_handlers.text.chat_template import syntax_error
from lmi_handlers.text.checkpoint_tokenizer import TOKENIZER_FILE
from lmi_handlers.text.output_parsers.reasoning import choose_reasoning_format, reasoning_format
from lmi_handlers.text.output_parsers.tool_formats import choose_tool_format
from lmi_handlers.text.vocabularies import difference
from lmi_handlers.web.api_keys import ApiKeys
from lmi_handlers.workers.environment import VARIABLE, withheld_from_code, withhold_credentials

SOCKET = "lmi-01234567/s/engine-0.sock"
"""A socket in the directory for temporary files, as an example: with one model, no other has a longer name."""

SOCKET_OF_MANY_MODELS = "lmi-01234567/model-01234567/s/engine-0.sock"

_LONGEST_SOCKET = 107 if sys.platform == "linux" else 103
"""Bytes of a socket's whole path."""


class PortTaken(ConfigError):
    """The port is in use, perhaps by this very server."""


def mistakes(configuration: Configuration, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the errors that prevent serving, as far as they can be found without loading the model.

    Those that `examine_configuration` has found come first.
    """
    found = (_mistake(check, configuration, environ) for check, kinds in _CHECKS if configuration.answered_by in kinds)
    return tuple(dict.fromkeys((*configuration.loaded.mistakes, *filter(None, found))))


def warnings(configuration: Configuration) -> Iterator[str]:
    """Yield warnings: the server starts, but may not do what was intended."""
    properties, backend = configuration.properties, configuration.backend
    if configuration.is_default_model:
        where = "" if configuration.model_dir is None else f" and {configuration.model_dir} holds no model"
        name = "" if properties.name == DEFAULT_MODEL_NAME else f", under the name {properties.name}"
        yield f"option.model_id is not set{where}: serving the default model, {DEFAULT_MODEL_NAME}{name}"
    yield from _misnamed(configuration)
    yield from _of_tgi(configuration)
    yield from _too_long(properties)
    yield from _beside(configuration)
    yield from _uninstalled(configuration)
    if configuration.answered_by is AnsweredBy.OWN_CODE and (names := withheld_from_code(os.environ)):
        yield f"the model's code does not get {', '.join(names)}; {VARIABLE}={','.join(names)} passes them on"
    yield from _unused(configuration)
    yield from _uncalled(configuration)
    yield from configuration.loaded.warnings(backend)
    if excess := _excess_memory(properties, backend):
        yield excess
    yield from _open_folders(properties)
    yield from registry().unusable.values()
    if configuration.shadow is not None:
        yield from map(of_shadow, configuration.shadow.loaded.warnings(configuration.shadow.backend))


def _of_tgi(configuration: Configuration) -> Iterator[str]:
    """Yield a warning if variables of TGI's container are set, and the invoke routes do not answer as TGI's do."""
    loaded = configuration.loaded
    if (
        configuration.answered_by is not AnsweredBy.ENGINE
        or loaded.properties.pools
        or loaded.sets("option.tgi_compat")
    ):
        return
    variables = {setting.variable for setting in loaded.explicit}
    if name := next((name for name in TGI_ALONE if name in variables), None):
        yield (
            f"{name} is a variable of TGI, but the invoke routes answer as LMI does, with an object where TGI has a list: "
            "option.tgi_compat=true makes them answer as TGI, and false ends this warning"
        )


def _too_long(properties: ServingProperties) -> Iterator[str]:
    """Yield a warning for a limit of prompts that the context never reaches. TGI does not start with such a limit."""
    prompt, total = properties.max_input_tokens, properties.max_model_len
    if prompt is None or total is None or prompt < total or properties.pools:
        return
    if properties.dialect.lower() == "mindie":  # which reserves the rest of the context, however short the prompt is
        yield (
            f"option.max_input_tokens={prompt} is not below option.max_model_len={total}: with "
            f"option.dialect={properties.dialect}, max_new_tokens may be at most 1"
        )
    else:
        yield (
            f"option.max_input_tokens={prompt} has no effect: with option.max_model_len={total}, a prompt may have at most "
            f"{total - 1} tokens, and answers get what it leaves"
        )


def _open_folders(properties: ServingProperties) -> Iterator[str]:
    """Yield a warning for each named folder in which every user can plant files. Whose it is may differ on a mount."""
    named = {"option.sessions_path": properties.sessions_path, "LMI_CACHE_DIR": named_cache_dir(os.environ)}
    for name, folder in named.items():
        with contextlib.suppress(OSError):
            if folder is not None and (mode := Path(folder).stat().st_mode) & stat.S_IWOTH:
                yield f"{name}={folder}: every user can write there (mode {stat.S_IMODE(mode):o}): chmod o-w"


def _misnamed(configuration: Configuration) -> Iterator[str]:
    """Yield a warning if the file with the options has a wrong name, such as serving.properties.txt."""
    directory = configuration.model_dir
    if directory is not None and (hint := did_you_mean(directory / FILE_NAME)):
        yield f"{directory} has no {FILE_NAME}{hint}"


def _beside(configuration: Configuration) -> Iterator[str]:
    """Yield a warning if an adapter lies beside the model's weights."""
    config = find_config(configuration.properties, default_cache_dir(os.environ))
    if config is None or configuration.answered_by is AnsweredBy.OWN_CODE:
        return
    if (adapter := config.with_name("adapter_config.json")).is_file():
        yield (
            f"{adapter.parent} holds an adapter beside the model, which is not used: put it in a folder adapters/<name> beside "
            "serving.properties, and set option.enable_lora=true"
        )


def _uninstalled(configuration: Configuration) -> Iterator[str]:
    """Yield a warning if there is a requirements.txt that is not installed."""
    code, model_dir = configuration.custom_code or configuration.formatters, configuration.model_dir
    if code is None:
        if model_dir is not None and (file := find_requirements(model_dir, None)) is not None:
            yield f"{file} is ignored: install packages in the image"
    elif code.requirements is None and (file := find_requirements(Path(code.directory), model_dir)) is not None:
        yield f"{file} is ignored: set option.install_requirements=true, or install packages in the image"


def _unused(configuration: Configuration) -> Iterator[str]:
    """Yield a warning for each model.py with no function that would be called, perhaps because its name is misspelt."""
    if configuration.answered_by is AnsweredBy.OWN_CODE:
        return
    properties, formatters = configuration.properties, configuration.formatters
    patterns = [] if names_script(properties.entry_point) else [SCRIPT]  # else that file may import it
    patterns += [f"adapters/*/{SCRIPT}"] if properties.enable_lora else []
    found = {script.adapter for script in formatters.scripts} if formatters is not None else set()
    for directory in script_directories(configuration.model_dir, properties):
        for path in (path for pattern in patterns for path in sorted(directory.glob(pattern))):
            adapter = "" if path.parent == directory else path.parent.name
            if adapter in found or _is_for_transformers(path.parent, properties):
                continue
            with contextlib.suppress(ConfigError):  # of a task, whose file nobody reads
                if lacks := _lacks(path, configuration, adapter):
                    yield f"{path} is not used: {lacks}"


def _lacks(path: Path, configuration: Configuration, adapter: str) -> str:
    """Say why nothing of a model.py is called, or return "" if it cannot be told or there is nothing that might be."""
    properties, names = configuration.properties, defined_names(path)
    if "*" in names:
        return ""
    lacks_handler = path.parent == configuration.model_dir and properties.handler not in names
    functions = [f"{properties.handler}(inputs)"] if lacks_handler else []
    if configuration.answered_by is AnsweredBy.TASK:
        causes = [f"it defines no {function}" for function in functions]
        if not {INPUT_FORMATTER, OUTPUT_FORMATTER}.isdisjoint(decorated_functions(path)):
            causes.append("formatters do not apply to tasks")
        return ", and ".join(causes)
    functions.append(f"@{INPUT_FORMATTER} or @{OUTPUT_FORMATTER}")
    named = "" if adapter else ", and option.output_formatter names no function of it"
    return f"it defines no {', '.join(functions)}{named}"


def _is_for_transformers(directory: Path, properties: ServingProperties) -> bool:
    """Tell whether the transformers library may run Python files of a directory: any of them, as one imports another."""
    if not properties.trust_remote_code:
        return False
    for path in directory.glob("*config.json"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            if b'"auto_map"' in file.read(MAX_JSON):
                return True
    return False


def _uncalled(configuration: Configuration) -> Iterator[str]:
    """Yield a warning if the model's own code has functions for adapters that nobody calls."""
    if configuration.answered_by is AnsweredBy.OWN_CODE and configuration.custom_code is not None:
        code = configuration.custom_code
        found = defined_names(Path(code.path)) & {*ADAPTER_FUNCTIONS}
        if unused := sorted(found.difference(code.adapter_functions)):
            yield f"{code.path}: {', '.join(unused)} is not called: adapters need {REGISTER}(inputs) beside handle(inputs)"


def _excess_memory(properties: ServingProperties, backend: BackendDeclaration) -> str:
    """Return a warning if a KV cache of ours is to take more memory than is free, else ""."""
    on_cpu = backend.cpu_only or find_gpu(os.environ, Path("/dev")) is None
    if properties.kv_cache_memory_bytes is None or not issubclass(backend.options, PagedOptions) or not on_cpu:
        return ""
    with contextlib.suppress(ConfigError):  # not a size, which loading reports
        return warn_of_excess(properties.kv_cache_memory_bytes, free_memory())
    return ""


def check_engine(configuration: Configuration) -> None:
    """Import the engine if it checks options itself, and let it do so. Raises `ConfigError`.

    `lmi serve` leaves this to the engine process, which imports the engine anyway.
    """
    backend = configuration.backend
    if configuration.custom_code is None and (backend.passes_options or backend.checks_options):
        properties = configuration.properties
        load_backend_class(configuration.selection.name, pools=properties.pools).check_options(properties)


def check_tokenizer(configuration: Configuration, environ: Mapping[str, str], *, runs_code: bool) -> None:
    """Build what web workers need to know of the model's tokenizer, in a temporary folder. Raises `ConfigError`.

    `lmi serve` leaves this to the engine process. A tokenizer that is the model's own code is only built if `runs_code`.
    """
    properties, backend = configuration.properties, configuration.backend
    needs_model = backend.needs_model or properties.model_id is not None
    runs_code = runs_code or not properties.trust_remote_code
    if configuration.answered_by is not AnsweredBy.ENGINE or not needs_model or not runs_code:
        return
    path = _located(configuration, environ)
    with tempfile.TemporaryDirectory() as directory:
        if path is not None and path.is_dir():
            _build_apart(path, Path(directory), trust_remote_code=properties.trust_remote_code)
        elif path is not None and backend.takes_gguf:
            build_gguf_bundle(path, Path(directory))


def _build_apart(path: Path, directory: Path, *, trust_remote_code: bool) -> None:
    """Build the text bundle in a process without the server's credentials, because the model may bring its own code."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_build, args=(sender, path, directory, trust_remote_code))
    resource_tracker.ensure_running()  # its start unblocks SIGINT
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))  # inherited: Ctrl-C waits until `_build` can end at once
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
    sender.close()
    try:
        error = receiver.recv()
    except EOFError:
        raise ConfigError(f"no tokenizer can be loaded from {path}: its code ended the process") from None
    finally:
        process.join()
    if error is not None:
        raise error


def _build(sender: Connection, path: Path, directory: Path, trust_remote_code: bool) -> None:
    """Build the text bundle in a process of its own, and send the error, or None."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
    withhold_credentials()
    try:
        build_text_bundle(path, directory, trust_remote_code=trust_remote_code)
    except LMIError as error:
        sender.send(error.without_frames())
    else:
        sender.send(None)


def _located(configuration: Configuration, environ: Mapping[str, str]) -> Path | None:
    """Return the GGUF file or folder of the model, or None if it is yet to be fetched. Raises `ConfigError`."""
    properties = configuration.properties
    return locate_model(
        properties.model_id,
        model_dir=configuration.model_dir,
        revision=properties.revision,
        cache_dir=default_cache_dir(environ),
        weights=configuration.backend.needs_weights,
    )


def preview_resources(configuration: Configuration) -> tuple[str, bool]:
    """Say what a cluster is asked for and what it has, "" for no cluster, and whether it has answered."""
    properties, backend = configuration.properties, configuration.backend
    if configuration.custom_code is not None or not backend.is_remote(properties):
        return "", True
    return load_backend_class(configuration.selection.name, pools=properties.pools).preview_resources(properties)


def preview_precision(configuration: Configuration) -> str:
    """Say what the engine would compute in, and why, or return "" where only the engine knows that."""
    if configuration.answered_by is not AnsweredBy.ENGINE or is_s3(configuration.properties.model_id):
        return ""
    file = find_gguf(configuration.properties.model_id, configuration.model_dir)
    header = None if file is None else read_gguf_header(file)
    chosen = choose_precision(configuration.selection.name, configuration.properties, header)
    return "" if chosen is None else f"Computes in {chosen[0]}: {chosen[1]}"


def preview_shadow(configuration: Configuration, environ: Mapping[str, str]) -> str:
    """Say which engine reads a share of the answers and what it needs, or return "" if none does. Raises `ConfigError`."""
    shadow, share = configuration.shadow, configuration.properties.shadow_share
    if shadow is None:
        return ""
    environ = without_options(environ)
    path = _located(shadow, environ) if shadow.backend.needs_model or shadow.properties.model_id is not None else None
    download, _ = preview_download(shadow, environ)
    needs = f"\nIts weights need {weight_bytes(path) / 2**30:.2f} GiB of memory beside the model's." if path else ""
    return (
        f"A shadow engine reads {100 * share:g} % of the answers afterwards: {shadow.properties.name} on backend "
        f"{shadow.selection.name}: {shadow.selection.reason}{needs}" + (f"\n{download}" if download else "")
    )


def check_formatters(configuration: Configuration) -> None:
    """Import the model's formatters, in a process of their own. Raises `ConfigError`.

    `lmi serve` leaves this to the process that runs them.
    """
    if configuration.formatters is not None:
        with tempfile.TemporaryDirectory() as directory:
            check_loading(
                EngineSettings(
                    runtime_dir=directory,
                    properties=configuration.properties,
                    started=0.0,
                    formatters=configuration.formatters,
                )
            )


def preview_download(configuration: Configuration, environ: Mapping[str, str]) -> tuple[str, bool]:
    """Say what the server would download, "" for nothing, and whether that is certain. Raises `ConfigError`.

    `lmi serve` leaves this to the engine process, too.
    """
    properties = configuration.properties
    if properties.model_id is None or configuration.answered_by is AnsweredBy.OWN_CODE:
        return "", True
    if not is_s3(properties.model_id):
        if _located(configuration, environ) is not None:
            return "", True
        return ask_hub(properties.model_id, revision=properties.revision, cache_dir=default_cache_dir(environ))
    try:
        weights = configuration.backend.needs_weights
        return preview(properties.model_id, model_cache(properties, environ), weights=weights)
    except LoadFailed as error:
        return str(error), False


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


def check_temporary_directory(socket_name: str) -> None:
    """Check that a socket with this name can be in the directory for temporary files. Raises `ConfigError`."""
    directory = temporary_directory()
    length, longest = len(os.fsencode(directory)), _LONGEST_SOCKET - len(f"/{socket_name}")
    if length > longest:
        raise ConfigError(
            f"{directory}: the path of the directory for temporary files has {length} bytes, and sockets in it need "
            f"one of at most {longest} (TMPDIR)"
        )


def _check_text_options(configuration: Configuration, environ: Mapping[str, str]) -> None:  # noqa: ARG001
    properties = configuration.properties
    choose_tool_format("", properties.tool_call_parser)
    if properties.reasoning_parser is not None:
        reasoning_format(properties.reasoning_parser)
    check_default_budget(
        properties.thinking_token_budget, configuration.backend.name, configuration.backend.unsupported
    )
    if properties.thinking_token_budget is not None and properties.enable_reasoning is False:
        raise ConfigError(f"option.thinking_token_budget {NO_MARKS}")


def _check_media(configuration: Configuration, environ: Mapping[str, str]) -> None:  # noqa: ARG001
    image_loader(configuration.properties)
    sound_loader(configuration.properties)


def _check_chat_embeddings(configuration: Configuration, environ: Mapping[str, str]) -> None:  # noqa: ARG001
    properties, backend = configuration.properties, configuration.backend
    if properties.chat_embeddings is None:
        return
    if configuration.answered_by is AnsweredBy.OWN_CODE:
        raise _needs_engine("chat_embeddings", configuration)
    if properties.pools or configuration.answered_by is AnsweredBy.TASK:
        raise ConfigError(
            f"option.chat_embeddings has no place beside option.task={properties.task}: there are no chats"
        )
    if "chat_embeddings" not in backend.reads:
        raise ConfigError(f"option.chat_embeddings is not supported by the {backend.name} backend")
    if properties.enable_lora:
        raise ConfigError("option.chat_embeddings is not supported with option.enable_lora")


def _check_pooling(configuration: Configuration, environ: Mapping[str, str]) -> None:  # noqa: ARG001
    properties = configuration.properties
    if properties.pools and "prefix_cache_file" in properties.engine_options:
        raise ConfigError(
            f"option.prefix_cache_file keeps prompts of texts that go on; with option.task={properties.task} there are none"
        )


def _check_local_runtime(configuration: Configuration, environ: Mapping[str, str]) -> None:  # noqa: ARG001
    if configuration.settings.local_runtime.enabled:
        # Flask brings a log handler, which the arbiter must not have before gevent (see web/gevent_worker.py).
        local_runtime_page().check(configuration.settings)


def _check_secure_mode(configuration: Configuration, environ: Mapping[str, str]) -> None:
    if (secure_mode := SecureMode.from_environ(environ)) is not None:
        has_custom_code = configuration.answered_by is AnsweredBy.OWN_CODE or configuration.formatters is not None
        secure_mode.check(configuration.loaded, configuration.model_dir, has_custom_code=has_custom_code)


def _check_scripts(configuration: Configuration, environ: Mapping[str, str]) -> None:  # noqa: ARG001
    for directory in script_directories(configuration.model_dir, configuration.properties):
        check_scripts(directory)


def _check_custom_code(configuration: Configuration, environ: Mapping[str, str]) -> None:  # noqa: ARG001
    for script in configuration.formatters.scripts if configuration.formatters is not None else ():
        check_siblings(Path(script.path).parent)
    if configuration.custom_code is not None:
        check_siblings(Path(configuration.custom_code.directory))


def _check_reload(configuration: Configuration, environ: Mapping[str, str]) -> None:  # noqa: ARG001
    if configuration.settings.reload:
        raise ConfigError(
            f"--reload loads a model's own code again, and this model is served by the backend {configuration.selection.name}"
        )


def _check_choices(configuration: Configuration, environ: Mapping[str, str]) -> None:  # noqa: ARG001
    if not configuration.backend.passes_options:  # else the engine's own plug-ins may know more
        configuration.backend.check_choices(configuration.properties)


def _check_gpus(configuration: Configuration, environ: Mapping[str, str]) -> None:
    check_gpus(configuration.properties, configuration.backend, count_gpus(environ, Path("/dev")))


def _check_model(configuration: Configuration, environ: Mapping[str, str]) -> None:
    properties = configuration.properties
    path = None
    if configuration.backend.needs_model or properties.model_id is not None:
        path = _located(configuration, environ)
        gguf_file = path if path is not None and path.is_file() else None
        if not is_s3(properties.model_id):  # which may hold either format
            check_format(configuration.backend, gguf_file, properties)
        if gguf_file is not None and not configuration.backend.takes_gguf:
            check_conversion(gguf_file, default_cache_dir(environ))
        if path is not None and path.is_dir():
            if configuration.backend.needs_weights:
                check_weights(path, properties)
            if properties.generation_config == "auto":
                check_sampling_defaults(path)
    find_adapters(properties, path)
    AdapterSources(properties, path)
    model_cache(properties, environ)


def _check_task(configuration: Configuration, environ: Mapping[str, str]) -> None:  # noqa: ARG001
    """A GGUF file, such as the default model, has a language model and nothing else."""
    file = find_gguf(configuration.properties.model_id, configuration.model_dir)
    if file is not None:
        raise ConfigError(
            f"{configuration.selection.reason} needs a model in transformers' format, but {file} is served"
        )


def _check_chat_template(configuration: Configuration, environ: Mapping[str, str]) -> None:  # noqa: ARG001
    properties = configuration.properties
    if properties.chat_template is not None:
        template = read_chat_template(properties.chat_template, configuration.model_dir)
        if error := syntax_error(template):
            raise ConfigError(f"option.chat_template is not a Jinja template: {error}")
        choose_reasoning_format(template, properties.reasoning_parser, enabled=properties.enable_reasoning)


def _check_shadow(configuration: Configuration, environ: Mapping[str, str]) -> None:
    """Check the shadow's configuration like a model's, and that it can read the model's answers."""
    shadow = configuration.shadow
    if shadow is None:
        return
    causes = [*mistakes(shadow, without_options(environ))]
    if shadow.answered_by is not AnsweredBy.ENGINE or shadow.formatters is not None:
        causes.append("code of the shadow's own and tasks are not supported")
    for name, properties in (("the model", configuration.properties), ("the shadow", shadow.properties)):
        if properties.pools:
            causes.append(f"{name} generates no text (option.task={properties.task})")
    if "prompt_logprobs" in shadow.backend.unsupported:
        causes.append(f"the backend {shadow.selection.name} gives no log probabilities of prompts")
    if not causes and (difference := _other_vocabulary(configuration, shadow, environ)):
        causes.append(difference)
    if causes:
        raise ConfigError("\n".join(map(of_shadow, causes)))


def _other_vocabulary(configuration: Configuration, shadow: Configuration, environ: Mapping[str, str]) -> str:
    """Say how the two vocabularies differ, if both have a tokenizer.json here. Otherwise the shadow engine compares them."""
    paths = [_located(configuration, environ), _located(shadow, without_options(environ))]
    one, other = (None if path is None or not (path / TOKENIZER_FILE).is_file() else path for path in paths)
    if one is None or other is None or one == other:
        return ""
    return difference(one, other)


def _check_no_shadow(configuration: Configuration, environ: Mapping[str, str]) -> None:  # noqa: ARG001
    if configuration.properties.shadow_model is not None:
        raise _needs_engine("shadow_model", configuration)


def _needs_engine(option: str, configuration: Configuration) -> ConfigError:
    return ConfigError(
        f"option.{option} needs a model that an engine serves: this is {configuration.answered_by.value}"
    )


_ENGINE, _TASK, _CODE = AnsweredBy.ENGINE, AnsweredBy.TASK, AnsweredBy.OWN_CODE
_ALL = tuple(AnsweredBy)

_Check = Callable[[Configuration, Mapping[str, str]], object]

_CHECKS: tuple[tuple[_Check, tuple[AnsweredBy, ...]], ...] = (
    (_check_secure_mode, _ALL),
    (lambda configuration, _: ServedApis(Context(properties=configuration.properties)), (_ENGINE,)),
    (_check_text_options, (_ENGINE,)),
    (_check_media, (_ENGINE, _TASK)),
    (_check_pooling, (_ENGINE,)),
    (_check_chat_embeddings, _ALL),
    (lambda configuration, _: parse_origins(configuration.properties.cors_allowed_origin or ""), _ALL),
    (lambda configuration, _: ApiKeys(None, configuration.settings.api_key_file), _ALL),
    (lambda _, environ: given_key(environ), _ALL),
    (_check_local_runtime, _ALL),
    (lambda _, environ: TelemetrySettings.from_environ(environ), _ALL),
    (_check_reload, (_ENGINE, _TASK)),
    (_check_scripts, (_ENGINE, _TASK)),
    (_check_custom_code, (_ENGINE, _CODE)),  # an engine may have formatters beside it
    (lambda configuration, _: check_installed(configuration.backend, configuration.properties), (_ENGINE, _TASK)),
    (_check_choices, (_ENGINE, _TASK)),
    (_check_gpus, (_ENGINE,)),
    (_check_task, (_TASK,)),
    (_check_model, (_ENGINE, _TASK)),  # the model's own code loads it itself
    (_check_chat_template, (_ENGINE,)),
    (_check_shadow, (_ENGINE,)),
    (_check_no_shadow, (_TASK, _CODE)),
)
"""All checks, in order, and for which kinds of models each is made. What is forbidden is forbidden for all of them."""


def _mistake(check: _Check, configuration: Configuration, environ: Mapping[str, str]) -> str:
    """Return the error that `check` finds, or ""."""
    try:
        check(configuration, environ)
    except ConfigError as error:
        return str(error)
    except OSError as error:
        return str(unreadable(error))
    return ""
