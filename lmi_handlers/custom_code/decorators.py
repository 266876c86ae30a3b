"""`djl_python.input_parser` and `djl_python.output_formatter`: the decorators, which only mark a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def input_formatter(function: Function) -> Function:
    """Mark the function that parses request bodies."""
    function.is_input_formatter = True  # type: ignore[attr-defined]  # LMI's name
    return function


def output_formatter(function: Function) -> Function:
    """Mark the function that writes the answers."""
    function.is_output_formatter = True  # type: ignore[attr-defined]  # LMI's name
    return function


def init_handler(function: Function) -> Function:
    """Mark the function that loads the model for a `prediction_handler`."""
    function.is_init_handler = True  # type: ignore[attr-defined]  # LMI's name
    return function


def prediction_handler(function: Function) -> Function:
    """Mark the function that answers requests in place of an engine."""
    function.is_prediction_handler = True  # type: ignore[attr-defined]  # LMI's name
    return function
