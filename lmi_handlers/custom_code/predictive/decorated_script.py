"""Runs a model.py that loads a model with `@init_handler`, as LMI's `djl_python.sklearn_handler` does.

`@input_formatter`, `@prediction_handler` and `@output_formatter` are optional. Source: `djl_python.sklearn_handler`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.config.decorators import (
    INIT_HANDLER,
    INPUT_FORMATTER,
    OUTPUT_FORMATTER,
    PREDICTION_HANDLER,
    decorated_functions,
)
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.custom_code.content import JSON
from lmi_handlers.custom_code.predictive.context import Context
from lmi_handlers.custom_code.predictive.features import as_rows, read_features, write_predictions
from lmi_handlers.custom_code.predictive.predictor import JSON_LINES, Predictor, Request, check_predicts, is_stream
from lmi_handlers.custom_code.script import accepts, import_script, wrong_signature

_ARGUMENTS = {
    INIT_HANDLER: ("model_dir",),
    INPUT_FORMATTER: ("inputs",),
    PREDICTION_HANDLER: ("data", "model"),
    OUTPUT_FORMATTER: ("predictions",),
}


def load(code: CustomCode) -> Predictor:
    """Import the file and return the function that answers requests with its functions.

    Raises `ConfigError` if they cannot be called as LMI calls them, and whatever the file raises.
    """
    module = import_script(code)
    functions: dict[str, Callable[..., Any]] = {}
    for decorator, name in decorated_functions(Path(code.path)).items():
        function, arguments = getattr(module, name), _ARGUMENTS[decorator]
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise wrong_signature(function, name, code.path, f"({', '.join(arguments)}) and not be async")
        if not accepts(function, *arguments):
            raise wrong_signature(function, name, code.path, f"({', '.join(arguments)})")
        functions[decorator] = function
    if INIT_HANDLER not in functions:
        raise ConfigError(f"{code.path} has no @{INIT_HANDLER}, which must load the model")
    return _Steps(code.path, functions).predictor()


class _Steps:
    """The decorated functions, by decorator."""

    def __init__(self, path: str, functions: dict[str, Callable[..., Any]]) -> None:
        self._path = path
        self._functions = functions
        self._reads = functions.get(INPUT_FORMATTER)
        self._predicts = functions.get(PREDICTION_HANDLER)
        self._writes = functions.get(OUTPUT_FORMATTER)
        self._takes_content_type = self._reads is not None and accepts(self._reads, "inputs", content_type=JSON)

    def predictor(self) -> Predictor:
        return Predictor(self._load, self._answer)

    def _load(self, context: Context) -> Any:
        model = self._functions[INIT_HANDLER](context.system_properties["model_dir"])
        if self._predicts is None:
            check_predicts(model, f"{self._path}: its @{INIT_HANDLER}", f"a @{PREDICTION_HANDLER}")
        return model

    def _answer(self, model: Any, request: Request) -> Any:
        data = as_rows(self._read(request))
        predictions = model.predict(data) if self._predicts is None else self._predicts(data, model)
        if self._writes is not None:
            content = self._writes(predictions)
            return content if isinstance(content, str | bytes) else (content, JSON)
        return (predictions, JSON_LINES) if is_stream(predictions) else write_predictions(predictions, request.accept)

    def _read(self, request: Request) -> Any:
        if self._reads is None:
            return read_features(request.body, request.content_type)
        keywords = {"content_type": request.content_type} if self._takes_content_type else {}
        return self._reads(request.inputs, **keywords)
