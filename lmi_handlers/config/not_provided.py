"""Features of LMI and SageMaker that this server does not support. They are rejected by name, never silently ignored.

One table lists them all. Whoever implements a feature deletes its rows.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from lmi_handlers.config.custom_code import parse_script
from lmi_handlers.core.errors import ConfigError, UnsupportedFeature


class Place(Enum):
    """Where a feature is requested."""

    OPTION = "option"
    VARIABLE = "environment variable"
    FUNCTION = "function"
    HEADER = "header"


@dataclass(frozen=True)
class NotProvided:
    """A name in one place, and what to do instead. `harmless` values (in lower case) need nothing that is missing."""

    place: Place
    name: str
    instead: str
    harmless: tuple[str, ...] = ()

    def refuses(self, value: str) -> bool:
        """Tell whether `value` asks for something that is not supported."""
        return value.strip().lower() not in ("", *self.harmless)


_OFF = ("false", "0", "no", "off")
_NO_SESSIONS = "sessions are not supported: remove it, and send the whole conversation with each request"
_NO_SECURE_MODE = (
    "secure mode is not supported, and the server does not start without the protection that was asked for: remove it, and "
    "check the contents of the model directory before you deploy it"
)
_NO_SCRIPTS = (
    "Python code that comes with a model is only run if it is a model.py with its own function handle(inputs): remove the file, "
    "or write such a function"
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
        "the server handles requests itself: use handle or remove it",
        ("handle",),
    ),
    NotProvided(Place.OPTION, "option.input_formatter", "the server parses request bodies itself: remove it"),
    NotProvided(
        Place.OPTION,
        "option.task",
        "only text generation and embeddings are supported: use text-generation or text-embedding, or remove it",
        ("auto", "generate", "text-generation", "image-text-to-text", "text-embedding"),
    ),
    NotProvided(
        Place.OPTION,
        "option.bedrock_compat",
        "there is no Bedrock mode: remove it and send bodies in LMI's or OpenAI's format",
        _OFF,
    ),
    NotProvided(Place.OPTION, "option.enable_stateful_sessions", _NO_SESSIONS, _OFF),
    NotProvided(Place.OPTION, "option.sessions_path", _NO_SESSIONS),
    NotProvided(Place.OPTION, "option.sessions_expiration", _NO_SESSIONS),
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
    NotProvided(
        Place.OPTION,
        "load_models",
        "each server serves one model: set its directory with `lmi serve --model-dir` or LMI_MODEL_DIR",
        ("all",),
    ),
    NotProvided(
        Place.OPTION,
        "model_store",
        "each server serves one model: set its directory with `lmi serve --model-dir` or LMI_MODEL_DIR",
        ("/opt/ml/model",),
    ),
    NotProvided(
        Place.VARIABLE,
        "SAGEMAKER_MULTI_MODEL",
        "each server serves one model: use one endpoint or inference component per model",
        _OFF,
    ),
    NotProvided(Place.VARIABLE, "SAGEMAKER_SECURE_MODE", _NO_SECURE_MODE, _OFF),
    NotProvided(Place.VARIABLE, "SAGEMAKER_SECURITY_CONTROLS", _NO_SECURE_MODE),
    NotProvided(Place.VARIABLE, "SAGEMAKER_UNTRUSTED_CHANNELS", _NO_SECURE_MODE),
    NotProvided(Place.VARIABLE, "SAGEMAKER_ENABLE_STATEFUL_SESSIONS", _NO_SESSIONS, _OFF),
    *(
        NotProvided(Place.FUNCTION, name, _NO_SCRIPTS)
        for name in (
            # LMI's handler, followed by its decorators
            "handle",
            "input_formatter",
            "output_formatter",
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
    NotProvided(Place.HEADER, "X-Amzn-SageMaker-Session-Id", _NO_SESSIONS),
    NotProvided(Place.HEADER, "x-synchronous", _NO_CACHE, ("true",)),
    NotProvided(Place.HEADER, "x-starting-token", _NO_CACHE),
)

SCRIPTS = ("model.py", "adapters/*/model.py", "code/inference.py")
"""Where LMI and SageMaker look for code in a model directory."""

_CUSTOM_ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"


def rows(place: Place) -> dict[str, NotProvided]:
    """Return name -> row for one place."""
    return {row.name: row for row in NOT_PROVIDED if row.place is place}


OPTIONS_NOT_PROVIDED = rows(Place.OPTION)
_FUNCTIONS = rows(Place.FUNCTION)
_HEADERS = rows(Place.HEADER)


def refused_option(key: str, value: str) -> str | None:
    """Return why `key` must not have this value in serving.properties, or None if it may."""
    row = OPTIONS_NOT_PROVIDED.get(key)
    return f"{key}={value} is not supported: {row.instead}" if row is not None and row.refuses(value) else None


def refused_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a reason for each environment variable that must not be set as it is."""
    for name, row in rows(Place.VARIABLE).items():
        value = environ.get(name, "")
        if row.refuses(value):
            yield f"{name}={value} is not supported: {row.instead}"


def check_scripts(model_dir: Path) -> None:
    """Raise `ConfigError` if `model_dir` has a script that LMI or SageMaker would run.

    A `model.py` with a function `handle` is run, unless an engine was asked for: see `custom_code`.
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


def check_headers(header: Callable[[str], str | None]) -> None:
    """Raise `UnsupportedFeature` if a header or custom attribute asks for something that is not supported."""
    attributes = {}
    for pair in (header(_CUSTOM_ATTRIBUTES) or "").split(";"):
        name, _, value = pair.partition("=")
        attributes[name.strip().lower()] = value
    for name, row in _HEADERS.items():
        for given in (header(name) or "", attributes.get(name.lower(), "")):
            if row.refuses(given):
                raise UnsupportedFeature(f"{name}: {given[:64]!r} is not supported: {row.instead}")
