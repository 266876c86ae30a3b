"""Features of LMI and SageMaker that this server does not support. They are rejected by name, never silently ignored.

One table lists them all. Whoever implements a feature deletes its rows.
"""

from __future__ import annotations

import ast
import fnmatch
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from lmi_handlers.config.custom_code import parse_script
from lmi_handlers.config.tasks import TASKS
from lmi_handlers.core.errors import ConfigError, UnsupportedFeature
from lmi_handlers.core.redaction import REDACTED, is_hidden, is_secret, redacted


class Place(Enum):
    """The place where a feature is requested."""

    OPTION = "option"
    VARIABLE = "environment variable"
    FUNCTION = "function"
    HEADER = "header"


@dataclass(frozen=True)
class NotProvided:
    """A name in one place, and what to do instead. `harmless` values need nothing that is missing.

    They are patterns in lower case, in which `*` stands for any text. With `lists`, messages end with them. The name of a
    variable may be a pattern, too.
    """

    place: Place
    name: str
    instead: str
    harmless: tuple[str, ...] = ()
    lists: bool = False

    def refuses(self, value: str) -> bool:
        """Tell whether `value` asks for something that is not supported."""
        given = value.strip().lower()
        return bool(given) and not any(fnmatch.fnmatchcase(given, pattern) for pattern in self.harmless)


_OFF = ("false", "0", "no", "off")
_NO_SCRIPTS = (
    "Python code that comes with a model is only run if it answers all requests, with handle(inputs) or SageMaker's model_fn, "
    "and if it is in the directory of serving.properties: remove the file, or write such a function"
)
_NO_FASTAPI = (
    "FastAPI's functions are not called: write handle(inputs), @input_formatter or @output_formatter in model.py"
)
_NO_CACHE = "answers are not stored: use stream, or one of SageMaker's asynchronous endpoints"

NOT_PROVIDED: tuple[NotProvided, ...] = (
    NotProvided(
        Place.OPTION,
        "engine",
        "the engine is chosen by option.rolling_batch and option.backend: use Python or remove it",
        ("python", "mpi", "deepspeed"),
    ),
    NotProvided(
        Place.OPTION,
        "option.handler",
        "engines answer requests themselves, and model.py defines no such function: define it, use handle or remove the option",
        ("handle",),
    ),
    NotProvided(Place.OPTION, "option.input_formatter", "the server parses request bodies itself: remove it"),
    NotProvided(
        Place.OPTION,
        "option.task",
        "remove it, or use a task that is supported",
        ("auto", *TASKS, "generate", "text-generation", "image-text-to-text", "text-embedding", "text-ranking"),
        lists=True,
    ),
    NotProvided(
        Place.OPTION,
        "option.bedrock_compat",
        "there is no Bedrock mode: remove it and send bodies in LMI's or OpenAI's format",
        _OFF,
    ),
    NotProvided(
        Place.OPTION, "option.stop_sequence", "stop sequences are set per request: send parameters.stop_sequences"
    ),
    NotProvided(
        Place.OPTION,
        "option.decoding_strategy",
        "the decoding strategy is set per request: send parameters.do_sample",
        ("greedy",),
    ),
    NotProvided(
        Place.OPTION,
        "option.is_peft_model",
        "adapters are served together with their model: set option.model_id to the model, and option.enable_lora=true",
        _OFF,
    ),
    *(
        NotProvided(Place.VARIABLE, name, _NO_FASTAPI)
        for name in (
            # SageMaker's standard for containers
            "CUSTOM_FASTAPI_PING_HANDLER",
            "CUSTOM_FASTAPI_INVOCATION_HANDLER",
            "CUSTOM_FASTAPI_MIDDLEWARE_THROTTLE",
            "CUSTOM_FASTAPI_MIDDLEWARE_PRE_POST_PROCESS",
            "CUSTOM_PRE_PROCESS",
            "CUSTOM_POST_PROCESS",
        )
    ),
    *(
        NotProvided(
            Place.VARIABLE,
            f"{prefix}*",
            f"only SageMaker's image of {server} reads it: set option.model_id and the other options, or put that server "
            "behind this one with option.rolling_batch=remote",
        )
        for prefix, server in (("SM_SGLANG_", "SGLang"), ("SM_LLAMA_CPP_", "llama.cpp"))
    ),
    NotProvided(Place.VARIABLE, "CUSTOM_SCRIPT_FILENAME", "option.entryPoint names the file: use that", ("model.py",)),
    *(
        NotProvided(Place.FUNCTION, name, _NO_SCRIPTS)
        for name in (
            # LMI's handler, followed by its decorators for one
            "handle",
            "init_handler",
            "prediction_handler",
            # SageMaker's scripts
            "model_fn",
            "input_fn",
            "predict_fn",
            "output_fn",
            "transform_fn",
            # SageMaker's standard for containers
            "custom_invocation_handler",
            "custom_ping_handler",
            "custom_sagemaker_invocation_handler",
            "custom_sagemaker_ping_handler",
        )
    ),
    NotProvided(Place.HEADER, "x-synchronous", _NO_CACHE, ("true",)),
    NotProvided(Place.HEADER, "x-starting-token", _NO_CACHE),
)

SCRIPTS = ("model.py", "adapters/*/model.py", "code/inference.py")
"""Files with code in a model directory, as LMI and SageMaker look for them."""


def rows(place: Place) -> dict[str, NotProvided]:
    """Return name -> row for one place."""
    return {row.name: row for row in NOT_PROVIDED if row.place is place}


OPTIONS_NOT_PROVIDED = rows(Place.OPTION)
_FUNCTIONS = rows(Place.FUNCTION)
_HEADERS = rows(Place.HEADER)


def refused_option(key: str, value: str) -> str | None:
    """Return why `key` must not have this value in serving.properties, or None if it may."""
    row = OPTIONS_NOT_PROVIDED.get(key)
    if row is None or not row.refuses(value):
        return None
    listed = f": {', '.join(row.harmless)}" if row.lists else ""
    return f"{key}={value} is not supported: {row.instead}{listed}"


def refused_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a reason for each environment variable that must not be set as it is."""
    for pattern, row in rows(Place.VARIABLE).items():
        for name in fnmatch.filter(sorted(environ), pattern):
            value = environ[name]
            if row.refuses(value):
                shown = REDACTED if is_secret(name, value) or is_hidden(name) else redacted(value)
                yield f"{name}={shown} is not supported: {row.instead}"


def check_scripts(model_dir: Path) -> None:
    """Raise `ConfigError` if `model_dir` has a script that LMI or SageMaker would run.

    A script that answers all requests is run, unless an engine was asked for: see `custom_code`.
    """
    for pattern in SCRIPTS:
        for path in sorted(model_dir.glob(pattern)):
            row = _FUNCTIONS.get(next(_names(path), ""))
            if row is not None:
                raise ConfigError(f"{path} defines or uses {row.name}, which is not supported: {row.instead}")


def _names(path: Path) -> Iterator[str]:
    """Yield the functions in the table that a script defines, imports or uses as decorators."""
    for node in parse_script(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = [item.func if isinstance(item, ast.Call) else item for item in node.decorator_list]
            named = [item.attr if isinstance(item, ast.Attribute) else getattr(item, "id", "") for item in decorators]
            yield from (name for name in (node.name, *named) if name in _FUNCTIONS)
        elif isinstance(node, ast.ImportFrom):
            yield from (item.name for item in node.names if item.name in _FUNCTIONS)


def check_headers(header: Callable[[str], str | None], attributes: Mapping[str, str]) -> None:
    """Raise `UnsupportedFeature` if a header or custom attribute asks for something that is not supported."""
    lowered = {name.lower(): value for name, value in attributes.items()}
    for name, row in _HEADERS.items():
        for given in (header(name), lowered.get(name.lower())):
            if given and row.refuses(given):
                raise UnsupportedFeature(f"{name}: {given[:64]!r} is not supported: {row.instead}")
