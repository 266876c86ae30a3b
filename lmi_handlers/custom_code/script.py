"""Imports the Python file that a model directory brings, such as `model.py`."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.custom_code.inputs import Input
from lmi_handlers.custom_code.lmi_modules import provide


def load(code: CustomCode) -> Callable[[Input], Any]:
    """Import the file and return its function.

    Raises `ConfigError` if it has no such function with one argument, and whatever the file raises.
    """
    function = getattr(import_script(code), code.function, None)
    if not callable(function):
        raise ConfigError(f"{code.path} defines no function {code.function}(inputs)")
    if not accepts(function, None):
        expected = f"one argument, as in {code.function}(inputs)"
        raise wrong_signature(function, code.function, code.path, expected)
    return function  # type: ignore[no-any-return]  # the author's


def import_script(code: CustomCode, name: str | None = None) -> ModuleType:
    """Import the file, with its folder last on `sys.path`, as a module of its own name or the given one.

    Raises whatever the file raises.
    """
    path = Path(code.path)
    packages = [] if code.packages is None else [code.packages]
    sys.path += [*packages, code.directory]
    provide()
    os.chdir(code.directory)
    sys.argv[:] = [str(path)]
    name = name or path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # noqa: S101, PT018  the name ends with .py
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def accepts(function: Callable[..., Any], *arguments: object, **keywords: object) -> bool:
    """Tell whether a function can be called with as many arguments. Assumes so if it is not written in Python."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return True
    try:
        signature.bind(*arguments, **keywords)
    except TypeError:
        return False
    return True


def wrong_signature(function: Callable[..., Any], name: str, path: str, expected: str) -> ConfigError:
    """Return the error for a function that cannot be called as it must be: where it is, what is expected, what it is."""
    script = getattr(inspect.unwrap(function), "__code__", None)
    where = f"{script.co_filename}, line {script.co_firstlineno}" if script else path
    return ConfigError(f"{where}: {name} must take {expected}, got {name}{inspect.signature(function)}")
