"""Runs SageMaker's scripts: `model_fn`, and `input_fn`, `predict_fn` and `output_fn` or else `transform_fn`.

The names, arguments and defaults are those of sagemaker-inference-toolkit (`sagemaker_inference.transformer`). Unlike
there, a generator that is returned becomes a stream, and `predict_fn` defaults to the model's own method `predict`. In
a model.py, which LMI calls, the functions get bytes, and the defaults are those of LMI's `djl_python.sklearn_handler`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.custom_code.content import TEXTS, decode, encode_accepted, text
from lmi_handlers.custom_code.predictive.context import Context
from lmi_handlers.custom_code.predictive.features import read_features, write_predictions
from lmi_handlers.custom_code.predictive.predictor import JSON_LINES, Predictor, Request, check_predicts, is_stream
from lmi_handlers.custom_code.script import accepts, import_script, wrong_signature

_ARGUMENTS = {
    "pre_model_fn": ("model_dir",),
    "model_fn": ("model_dir",),
    "model_warmup_fn": ("model_dir", "model"),
    "input_fn": ("data", "content_type"),
    "predict_fn": ("data", "model"),
    "output_fn": ("prediction", "accept"),
    "transform_fn": ("model", "data", "content_type", "accept"),
}
_Function = Callable[..., Any]


def load(code: CustomCode) -> Predictor:
    """Import the script and return the function that answers requests with its functions.

    Raises `ConfigError` if they cannot be called as SageMaker calls them, and whatever the script raises.
    """
    return _Script(import_script(code), code.path, _DEFAULTS, _body).predictor()


def load_lmi(code: CustomCode) -> Predictor:
    """As `load`, for a model.py."""
    return _Script(import_script(code), code.path, _LMI_DEFAULTS, lambda request: request.body).predictor()


class _Script:
    """The functions of a script, by name. All of them take the context last, whether or not the author's do."""

    def __init__(
        self,
        module: ModuleType,
        path: str,
        defaults: Mapping[str, _Function],
        body: Callable[[Request], str | bytes],
    ) -> None:
        given = {
            name: _with_context(function, name, path)
            for name in _ARGUMENTS
            if (function := getattr(module, name, None)) is not None
        }
        self._path = path
        self._body = body
        self._predicts = not given.keys().isdisjoint(("predict_fn", "transform_fn"))
        self._functions = {**defaults, **given}
        if "model_fn" not in given:
            raise ConfigError(f"{path} defines no function model_fn(model_dir)")
        if "transform_fn" in given and (replaced := [name for name in defaults if name in given]):
            raise ConfigError(f"{path} defines transform_fn, which replaces {', '.join(replaced)}: remove either")

    def predictor(self) -> Predictor:
        return Predictor(self._load, self._transform if "transform_fn" in self._functions else self._steps)

    def _load(self, context: Context) -> Any:
        model_dir = context.system_properties["model_dir"]
        if (before := self._functions.get("pre_model_fn")) is not None:
            before(model_dir, context)
        model = self._functions["model_fn"](model_dir, context)
        if (warm_up := self._functions.get("model_warmup_fn")) is not None:
            warm_up(model_dir, model, context)
        if not self._predicts:
            check_predicts(model, f"{self._path}: model_fn", "predict_fn(data, model)")
        return model

    def _steps(self, model: Any, request: Request) -> Any:
        functions, context = self._functions, request.context
        data = functions["input_fn"](self._body(request), request.content_type, context)
        prediction = functions["predict_fn"](data, model, context)
        return functions["output_fn"](prediction, request.accept, context)

    def _transform(self, model: Any, request: Request) -> Any:
        transform = self._functions["transform_fn"]
        return transform(model, self._body(request), request.content_type, request.accept, request.context)


def _read(data: str | bytes, content_type: str | None, _: Context) -> Any:
    return decode(data, content_type)


def _predict(data: Any, model: Any, _: Context) -> Any:
    return model.predict(data)


def _write(prediction: Any, accept: str, _: Context) -> Any:
    return (prediction, JSON_LINES) if is_stream(prediction) else encode_accepted(prediction, accept)


def _read_lmi(data: bytes, content_type: str | None, _: Context) -> Any:
    return read_features(data, content_type)


def _write_lmi(prediction: Any, accept: str, _: Context) -> Any:
    return (prediction, JSON_LINES) if is_stream(prediction) else write_predictions(prediction, accept)


_DEFAULTS: dict[str, _Function] = {"input_fn": _read, "predict_fn": _predict, "output_fn": _write}
_LMI_DEFAULTS = _DEFAULTS | {"input_fn": _read_lmi, "output_fn": _write_lmi}


def _body(request: Request) -> str | bytes:
    return text(request.body) if request.content_type in TEXTS else request.body


def _with_context(function: Any, name: str, path: str) -> _Function:
    """Return the function with a context as its last argument. Raises `ConfigError` if it takes other arguments."""
    arguments = _ARGUMENTS[name]
    if not callable(function):
        raise ConfigError(f"{path}: {name} is not a function")
    listed = ", ".join(arguments)
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise wrong_signature(function, name, path, f"({listed}) and not be async")
    if accepts(function, *arguments, "context"):
        return function  # type: ignore[no-any-return]  # the author's
    if accepts(function, *arguments):
        return lambda *values: function(*values[:-1])
    raise wrong_signature(function, name, path, f"({listed}) or ({listed}, context)")
