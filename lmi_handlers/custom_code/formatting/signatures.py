"""Tells by a formatter's signature how it is to be called. LMI has changed that twice."""

from __future__ import annotations

import enum
import inspect
import typing
from collections.abc import Callable
from typing import Any

from lmi_handlers.config.decorators import INPUT_FORMATTER, OUTPUT_FORMATTER
from lmi_handlers.custom_code.inputs import Input
from lmi_handlers.custom_code.request_io import RequestInput, RequestOutput
from lmi_handlers.custom_code.script import wrong_signature

_LEGACY_ARGUMENTS = 6
_INPUT = "(decoded_payload, tokenizer=None, **kwargs) or (input_item, **kwargs)"
_OUTPUT = (
    "(request_output: TextGenerationOutput), (response), (response: dict) or (token, first_token, last_token, details, "
    "generated_text, request_id)"
)
_ITEM_NAMES = ("input", "inputs", "input_item", "item")


class InputKind(enum.Enum):
    """PAYLOAD: `f(decoded_payload, tokenizer=..) -> dict`. ITEM: `f(input_item, **kwargs) -> RequestInput`."""

    PAYLOAD = enum.auto()
    ITEM = enum.auto()


class OutputKind(enum.Enum):
    """The signature of an output formatter.

    LEGACY: `f(token, first_token, last_token, details, generated_text, request_id)` for each token. OUTPUT:
    `f(request_output: RequestOutput)` for each token. RESPONSE: `f(response)` with OpenAI's objects. DICT:
    `f(response: dict)` with LMI's documents.
    """

    LEGACY = enum.auto()
    OUTPUT = enum.auto()
    RESPONSE = enum.auto()
    DICT = enum.auto()


def input_kind(function: Callable[..., Any]) -> InputKind:
    """Return how to call an input formatter. Raises `ConfigError`, with the line, if it cannot be called."""
    parameters, hints = _signature(function)
    if _required(parameters) not in (0, 1) or not _positional(parameters) or _unknown(parameters, INPUT_KEYWORDS):
        raise wrong_signature(function, f"@{INPUT_FORMATTER} {function.__name__}", "", _INPUT)
    first = _positional(parameters)[0]
    given, returned = hints.get(first.name), hints.get("return")
    if _is_kind(given, Input) or _is_kind(returned, RequestInput):
        return InputKind.ITEM
    if given is not None or returned is not None or "tokenizer" in parameters:
        return InputKind.PAYLOAD
    return InputKind.ITEM if first.name in _ITEM_NAMES else InputKind.PAYLOAD


def output_kind(function: Callable[..., Any]) -> OutputKind:
    """Return how to call an output formatter. Raises `ConfigError`, with the line, if it cannot be called."""
    parameters, hints = _signature(function)
    required, positional = _required(parameters), _positional(parameters)
    if not _unknown(parameters, ()):
        if required == _LEGACY_ARGUMENTS:
            return OutputKind.LEGACY
        if positional and required in (0, 1):
            given = hints.get(positional[0].name)
            if _is_kind(given, RequestOutput):
                return OutputKind.OUTPUT
            return OutputKind.DICT if _is_kind(typing.get_origin(given) or given, dict) else OutputKind.RESPONSE
    raise wrong_signature(function, f"@{OUTPUT_FORMATTER} {function.__name__}", "", _OUTPUT)


INPUT_KEYWORDS = ("tokenizer", "configs", "is_rolling_batch")
"""Arguments that an input formatter may request by name."""


def accepted(function: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return those of the keyword arguments that the function takes."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return values
    return {name: value for name, value in values.items() if name in parameters}


def _signature(function: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], dict[str, Any]]:
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # noqa: BLE001  annotations may be anything, and names in them may be missing
        hints = {name: _by_name(value) for name, value in getattr(function, "__annotations__", {}).items()}
    return dict(inspect.signature(function).parameters), hints


def _by_name(hint: Any) -> Any:
    """Return the class of an annotation that cannot be evaluated, by its name."""
    text = str(hint).strip("'\"")
    names: dict[str, Any] = {"Input": Input, "RequestInput": RequestInput, "TextInput": RequestInput}
    names |= {"RequestOutput": RequestOutput, "TextGenerationOutput": RequestOutput, "dict": dict, "Dict": dict}
    return names.get(text.partition("[")[0].rpartition(".")[2], object)


def _is_kind(hint: Any, kind: type) -> bool:
    return isinstance(hint, type) and issubclass(hint, kind)


def _positional(parameters: dict[str, inspect.Parameter]) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter for parameter in parameters.values() if parameter.kind in kinds]


def _required(parameters: dict[str, inspect.Parameter]) -> int:
    return sum(parameter.default is parameter.empty for parameter in _positional(parameters))


def _unknown(parameters: dict[str, inspect.Parameter], known: tuple[str, ...]) -> bool:
    """Tell whether a required keyword is unknown."""
    return any(
        parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty and name not in known
        for name, parameter in parameters.items()
    )
