"""Finds the Python file of a model directory that answers requests in place of an engine, and its requirements.txt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from lmi_handlers.config.custom_code import (
    ADAPTER_FUNCTIONS,
    FUNCTION,
    REGISTER,
    SCRIPT,
    defined_names,
    defines_asynchronous,
    names_script,
)
from lmi_handlers.config.decorators import (
    INIT_HANDLER,
    INPUT_FORMATTER,
    OUTPUT_FORMATTER,
    PREDICTION_HANDLER,
    decorated_functions,
)
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.near_file import did_you_mean

SAGEMAKER = ("model_fn", "input_fn", "predict_fn", "output_fn", "transform_fn")
"""The functions of SageMaker's scripts."""

PREDICTIVE_HANDLERS = ("djl_python.sklearn_handler", "djl_python.xgboost_handler")
"""LMI's handlers that call the functions of a model.py. Here, that file must load the model."""

PROGRAM = "SAGEMAKER_PROGRAM"
SUBMIT_DIRECTORY = "SAGEMAKER_SUBMIT_DIRECTORY"
_PROGRAM = "inference.py"


_LMI = "lmi_handlers.custom_code.script:load"


class Script(msgspec.Struct, frozen=True):
    """A Python file that answers requests. `loader` and `function` are as in `CustomCode`. `defines` says why it does."""

    path: Path
    defines: str
    loader: str = _LMI
    function: str = FUNCTION

    @property
    def is_batched(self) -> bool:
        """True if one call can answer several requests."""
        return self.loader == _LMI

    @property
    def adapter_functions(self) -> tuple[str, ...]:
        """The functions for adapters that are called: none unless one registers them. Raises `ConfigError`."""
        names = defined_names(self.path) if self.loader == _LMI else set()
        return tuple(name for name in ADAPTER_FUNCTIONS if REGISTER in names and name in names)


def find_script(
    model_dir: Path | None,
    entry_point: str | None,
    environ: Mapping[str, str],
    function: str = FUNCTION,
    *,
    asynchronous: bool = False,
) -> Script | None:
    """Return the file that answers requests, or None if an engine does. Imports nothing.

    It is the one that `option.entryPoint` names, else model.py, else SageMaker's. LMI's name for `function`, which is
    called, is `option.handler`. `asynchronous` says that `option.entryPoint` names one of LMI's asynchronous handlers: a
    model.py whose function is asynchronous too takes its place, as in LMI. Raises `ConfigError` if a file that is named
    is not there or lacks the functions.
    """
    if names_script(entry_point):
        path = (model_dir or Path.cwd()) / str(entry_point)
        if path.is_file() and _only_formats(path, function):
            return None
        return _named_script(path, f"option.entryPoint={entry_point}", function=function)
    if entry_point in PREDICTIVE_HANDLERS:
        return _named_script((model_dir or Path.cwd()) / SCRIPT, f"option.entryPoint={entry_point}")
    if model_dir is None:
        return None
    path = model_dir / SCRIPT
    if entry_point is not None:
        replaces = asynchronous and path.is_file() and defines_asynchronous(path, function)
        return _script(path, "load_lmi", function) if replaces else None
    return (_script(path, "load_lmi", function) if path.is_file() else None) or _sagemaker_script(model_dir, environ)


def _sagemaker_script(model_dir: Path, environ: Mapping[str, str]) -> Script | None:
    """Return the script that SageMaker's variables name, by default code/inference.py."""
    program = environ.get(PROGRAM) or _PROGRAM
    given = environ.get(SUBMIT_DIRECTORY, "")
    directory = Path(given) if given.startswith("/") and Path(given).is_dir() else model_dir / "code"
    path = directory / (program if program.endswith(".py") else f"{program}.py")
    if program in (_PROGRAM, Path(_PROGRAM).stem):  # images for engines set it, too, whether or not there is one
        return _script(path, "load") if path.is_file() else None
    return _named_script(path, f"{PROGRAM}={program}", "load")


def _named_script(path: Path, named: str, sagemaker: str = "load_lmi", function: str = FUNCTION) -> Script:
    if not path.is_file():
        raise ConfigError(f"{named}: {path} does not exist{did_you_mean(path)}")
    if (script := _script(path, sagemaker, function)) is None:
        raise ConfigError(
            f"{named}: {path} defines no function {function}(inputs), @{INIT_HANDLER} or model_fn(model_dir)"
        )
    return script


def _script(path: Path, sagemaker: str, function: str = FUNCTION) -> Script | None:
    """Return what a file defines, if it answers requests. `sagemaker` loads SageMaker's functions."""
    names = defined_names(path)
    if function in names:
        return Script(path, f"{function}(inputs)", function=function)
    decorated = decorated_functions(path)
    if INIT_HANDLER in decorated or PREDICTION_HANDLER in decorated:
        defines = ", ".join(f"@{name}" for name in decorated)
        return Script(path, defines, "lmi_handlers.custom_code.predictive.decorated_script:load", path.name)
    if found := [name for name in SAGEMAKER if name in names]:
        return Script(
            path, ", ".join(found), f"lmi_handlers.custom_code.predictive.sagemaker_script:{sagemaker}", path.name
        )
    return None


def _only_formats(path: Path, function: str) -> bool:
    """Tell whether an engine answers the requests, and the file only has formatters."""
    decorated = decorated_functions(path)
    return (INPUT_FORMATTER in decorated or OUTPUT_FORMATTER in decorated) and _script(
        path, "load_lmi", function
    ) is None


def find_requirements(directory: Path, model_dir: Path | None) -> Path | None:
    """Return the requirements.txt beside the code, or else in the model directory, if there is one."""
    places = (directory,) if model_dir is None else (directory, model_dir)
    return next((file for place in places if (file := place / "requirements.txt").is_file()), None)
