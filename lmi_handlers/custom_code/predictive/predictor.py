"""Answers requests in steps: loads a model once, then turns each request into an answer with it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.custom_code.content import ANY, JSON, ContentError, accepted
from lmi_handlers.custom_code.inputs import Input
from lmi_handlers.custom_code.outputs import Output, text_or_line
from lmi_handlers.custom_code.predictive.context import Context

JSON_LINES = "application/jsonlines"


@dataclass(frozen=True)
class Request:
    """A request. `accept` is its `Accept` header or, if any type will do, the default."""

    inputs: Input
    body: bytes
    content_type: str | None
    accept: str
    context: Context


LoadModel = Callable[[Context], Any]
"""Returns the model. May raise anything."""

Transform = Callable[[Any, Request], Any]
"""Returns the answer of a model to a request: its content, or `(content, content type)`. May raise anything."""


class Predictor:
    """A function for `CustomCode`. Its first call loads the model, and each later one answers a request."""

    def __init__(self, load: LoadModel, transform: Transform) -> None:
        self._load = load
        self._transform = transform
        self._context: Context | None = None
        self._model: Any = None
        self._default_accept = JSON

    def __call__(self, inputs: Input) -> Output | None:
        if self._context is None:
            properties = inputs.get_properties()
            self._context = Context(properties)
            self._default_accept = properties.get("default_accept", JSON)
            self._model = self._load(self._context)
            return None
        return self._answer(inputs, self._context)

    def _answer(self, inputs: Input, context: Context) -> Output:
        """Answer a request. An exception of the toolkit's own class becomes a response with its status."""
        processor = context.begin(inputs.get_properties())
        accept = inputs.get_property("accept") or ANY
        if ANY in accepted(accept):
            accept = self._default_accept
        body, content_type = inputs.get_as_bytes() or b"", inputs.get_property("content-type")
        request = Request(inputs, body, content_type, accept, context)
        try:
            result = self._transform(self._model, request)
        except Exception as error:
            if (status := _status(error)) is not None:
                return Output().error(getattr(error, "message", None) or str(error), code=status)
            raise
        output = _output(result, context.get_response_content_type(0) or accepted(accept)[0])
        output.code = processor.status if output.code == 200 else output.code
        output.properties = processor.get_response_headers() | output.properties
        return output


def is_stream(content: object) -> bool:
    """Tell whether content is sent piece by piece."""
    return inspect.isgenerator(content) or inspect.isasyncgen(content)


def check_predicts(model: Any, loader: str, needed: str) -> None:
    """Raise `ConfigError` if a model that `loader` has returned does not predict by itself."""
    if not hasattr(model, "predict"):
        name = type(model).__name__
        raise ConfigError(f"{loader} returned a {name}, which has no method predict: define {needed}")


def _status(error: Exception) -> int | None:
    """Return the status of a `ContentError` or of an error like the inference toolkit's, which has a phrase, too."""
    status = getattr(error, "status_code", None)
    if isinstance(error, ContentError) or hasattr(error, "phrase"):
        return status if isinstance(status, int) and 400 <= status <= 599 else None
    return None


def _output(result: Any, content_type: str) -> Output:
    """Return what the functions have returned as an `Output`, by default of this type. A generator becomes a stream.

    Raises `TypeError` if they have returned nothing.
    """
    if isinstance(result, Output):
        return result
    content, kind = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    if content is None:
        raise TypeError("nothing was returned for the answer")
    output = Output()
    if is_stream(content):
        output.add_stream_content(content, text_or_line)
    else:
        output.add(content)
    return output.add_property("Content-Type", kind or content_type)
