"""Calls an input formatter, and turns what it returns into LMI's request body."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from lmi_handlers.custom_code.encode_decode import decode
from lmi_handlers.custom_code.formatting.signatures import InputKind, accepted, input_kind
from lmi_handlers.custom_code.formatting.tokenizer import LazyTokenizer
from lmi_handlers.custom_code.inputs import Input
from lmi_handlers.custom_code.outputs import builtin
from lmi_handlers.custom_code.request_io import RequestInput


class InputFormatter:
    """An input formatter. Calling it returns the new body, and the `RequestInput` for the output formatter, pickled."""

    def __init__(
        self,
        function: Callable[..., Any],
        properties: dict[str, str],
        tokenizer: LazyTokenizer,
        result: Callable[..., Any],
    ) -> None:
        """`result` waits for a coroutine. Raises `ConfigError` if the function's signature is wrong."""
        self._function = function
        self._kind = input_kind(function)
        self._result = result
        keywords: dict[str, Any] = {"tokenizer": tokenizer}
        if self._kind is InputKind.ITEM:
            keywords |= {"configs": SimpleNamespace(**properties), "is_rolling_batch": True}
        self._keywords = accepted(function, keywords)

    def __call__(self, item: Input) -> tuple[bytes, bytes]:
        """Raises whatever the function raises, and `TypeError` if it returns something wrong."""
        name = self._function.__name__
        if self._kind is InputKind.ITEM:
            request = self._result(self._function(item, **self._keywords))
            if not isinstance(request, RequestInput):
                raise TypeError(f"{name} returned {type(request).__name__}: it must return a RequestInput")
            request.tokenizer = None  # type: ignore[attr-defined]  # it is set again for the output formatter
            return _json(_body(request)), pickle.dumps(request)
        payload = decode(item, item.get_property("Content-Type"))
        payload = self._result(self._function(payload, **self._keywords))
        if not isinstance(payload, dict):
            raise TypeError(f"{name} returned {type(payload).__name__}: it must return the payload, a dict")
        return _json(payload), b""


def _body(request: RequestInput) -> dict[str, Any]:
    """Return the body that means the same as a `RequestInput`."""
    parameters = {**request.parameters, **request.server_parameters}
    body: dict[str, Any] = {"inputs": getattr(request, "input_text", None), "stream": parameters.pop("stream", False)}
    if isinstance(request.output_formatter, str):
        parameters.setdefault("output_formatter", request.output_formatter)
    if adapters := getattr(request, "adapters", None):
        body["adapters"] = adapters
    return body | {"parameters": parameters}


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=builtin).encode()
