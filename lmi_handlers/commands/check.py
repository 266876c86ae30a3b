"""`lmi check`: prints the options in effect, and what would keep `lmi serve` from doing what was intended."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from backends import registry
from backends.options_page import SETTINGS
from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.config.environment import all_variables
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.config.report import render_settings, render_variables
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.log import fail
from lmi_handlers.core.terminal import show, show_error
from lmi_handlers.custom_code.once import load_once
from lmi_handlers.custom_code.runner import CodeError
from lmi_handlers.migration.tgi import translate_tgi
from lmi_handlers.migration.vllm import translate_vllm
from lmi_handlers.model_files.s3_url import is_s3
from lmi_handlers.models.source import models_in
from lmi_handlers.preflight.checks import (
    SOCKET,
    SOCKET_OF_MANY_MODELS,
    PortTaken,
    check_engine,
    check_formatters,
    check_port,
    check_temporary_directory,
    check_tokenizer,
    mistakes,
    preview_download,
    preview_precision,
    preview_resources,
    preview_shadow,
    warnings,
)
from lmi_handlers.preflight.configuration import (
    AnsweredBy,
    Configuration,
    examine_configuration,
    model_environ,
    read_store,
)
from lmi_handlers.preflight.pages import shown_pages


def check(environ: Mapping[str, str], flags: Collection[str], *, show_all: bool, runs_code: bool) -> None:
    """Check one model, or each model in a model store. Exits with status 1 after an error or an unknown option.

    `flags` has the names of the variables in `environ` that the command line sets.
    """
    try:
        configuration = read_store(environ)
        check_temporary_directory(SOCKET if configuration is None else SOCKET_OF_MANY_MODELS)
    except ConfigError as error:
        fail(str(error))
    declared = [item for struct in SETTINGS for item in all_variables(struct)]
    server = render_variables(declared, environ, flags, show_all=show_all)
    if configuration is None:
        _check_model(environ, server, show_all=show_all, runs_code=runs_code)
        return
    if server:
        show(server)
    store, has_failed = configuration.store, False
    try:
        models = [*models_in(store)]
    except OSError as error:
        fail(f"the model store {store.directory} cannot be read: {error.strerror}")
    if store.multi_model:
        show(
            f"SageMaker loads and unloads the models (SAGEMAKER_MULTI_MODEL=true); {store.directory} holds {len(models)}\n"
        )
    elif not models:
        show(f"Warnings\n  the model store {store.directory} holds no model")
    for name, url in models:
        directory = Path(store.directory) / url
        if not directory.is_dir():
            show(f"Model {name} is not checked: {url} is fetched when the server starts\n")
            continue
        try:
            _check_model(model_environ(environ, str(directory)), "", show_all=show_all, runs_code=runs_code)
        except SystemExit:  # the others are checked, too
            has_failed = True
        show()
    if has_failed:
        sys.exit(1)


def _check_model(environ: Mapping[str, str], server: str, *, show_all: bool, runs_code: bool) -> None:
    """Print warnings, options, the table `server` and errors, and load the model's own code if `runs_code`.

    Exits with status 1 after an error or an unknown option.
    """
    try:
        configuration = examine_configuration(environ)
    except ConfigError as error:
        fail(str(error))
    found, causes = [*warnings(configuration)], [*mistakes(configuration, environ)]
    with _added_to(causes):
        try:
            check_port(configuration.settings.host, configuration.settings.port)
        except PortTaken as error:
            found.append(f"{error}: `lmi serve` starts once it is free")
    previews: list[str] = []
    if not causes:
        with _added_to(causes):
            shown_pages(configuration.settings, configuration.properties, environ)
            download, certain = preview_download(configuration, environ)
            (previews if certain else found).append(download)
            shadow = preview_shadow(configuration, environ)
            previews += (preview_precision(configuration), shadow)
    if found:
        show("\n".join(["Warnings", *(f"  {warning}" for warning in found), ""]))
    is_own_code = configuration.answered_by is AnsweredBy.OWN_CODE
    where = "by its own code" if is_own_code else f"on backend {configuration.selection.name}"
    title = f"Model {configuration.properties.name} {where}: {configuration.selection.reason}"
    for line in filter(None, (title, *previews, configuration.chat_streams)):
        show(f"{line}\n")
    show(render_settings(configuration.loaded, configuration.backend, show_all=show_all), end="")
    if server:
        show(f"\n{server}", end="")
    if not causes:
        with _added_to(causes):
            _check_loading(configuration, environ, runs_code=runs_code)
    if runs_code and is_own_code:
        causes += _own_code_causes(configuration, is_valid=not causes)
    if not runs_code and (is_own_code or configuration.formatters):
        show("\nThe model's own code was not loaded (--no-code).")
    if causes:
        fail(*causes)
    if configuration.loaded.unknown_names(configuration.backend):
        show("\nThe server would start, but an option is unknown (see Warnings): exit status 1.")
        sys.exit(1)


@contextlib.contextmanager
def _added_to(causes: list[str]) -> Iterator[None]:
    """Add the error that ends the block to the causes for which the model cannot be served."""
    try:
        yield
    except ConfigError as error:
        causes.append(str(error))


def _check_loading(configuration: Configuration, environ: Mapping[str, str], *, runs_code: bool) -> None:
    """Check as much of the engine as can be checked without loading the model. Raises `ConfigError`."""
    check_engine(configuration)
    check_tokenizer(configuration, environ, runs_code=runs_code)
    if configuration.shadow is not None:
        check_engine(configuration.shadow)
    resources, has_answered = preview_resources(configuration)
    if resources:
        show(f"\n{resources}" if has_answered else f"\nWarning: {resources}")
    if runs_code and configuration.formatters is not None:
        check_formatters(configuration)
        paths = dict.fromkeys(script.path for script in configuration.formatters.scripts)
        show(f"\nThe formatters in {', '.join(paths)} were loaded.")


def _own_code_causes(configuration: Configuration, *, is_valid: bool) -> list[str]:
    """Load the model's own code if that can be done here, and return the error if that fails."""
    if is_s3(configuration.properties.model_id):
        show("\nThe model's own code was not loaded, because that would download the model: lmi run loads it.")
    elif is_valid and configuration.custom_code is not None:
        return _load(configuration.custom_code, configuration.properties)
    return []


def translate(server: str, command: str) -> str:
    """Return the serving.properties that means the same as a command of `server`. Exits with status 1 after an error."""
    try:
        return _TRANSLATE[server](command, registry().options, os.environ)
    except ConfigError as error:
        fail(str(error))


_TRANSLATE = {"tgi": translate_tgi, "vllm": translate_vllm}


def _load(code: CustomCode, properties: ServingProperties) -> list[str]:
    """Import the code and call it once, and say so. Returns the error if that fails."""
    show(f"\nLoading {code.path}, and calling {code.function} once without content ..")
    started = time.monotonic()
    try:
        load_once(code, properties)
    except CodeError as error:
        if error.traceback:
            show_error(error.traceback)
        return [str(error)]
    show(f"It works. This took {time.monotonic() - started:.1f} s.")
    return []
