"""Finds the code that a model directory brings: a Python file with a function that answers requests, as LMI has it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec

from lmi_handlers.core.errors import ConfigError

SCRIPT = "model.py"
"""The file that LMI looks for if `option.entryPoint` does not name one."""

FUNCTION = "handle"

_HIDDEN = ("lmi_handlers", "backends", "formatters", "djl_python")
"""Top-level packages that the code would get in place of modules of its own with these names."""


class CustomCode(msgspec.Struct, frozen=True, kw_only=True):
    """A file to import and the function in it that answers requests.

    `properties` are the options by LMI's names without `option.`, as text: the first call gets them. `processes` import
    the file, each on one of the `gpus`, if there are any.
    """

    path: str
    properties: dict[str, str]
    processes: int = 1
    gpus: int = 0

    @property
    def directory(self) -> Path:
        """The folder of the file. It is the working directory of the code."""
        return Path(self.path).parent


def names_script(entry_point: str | None) -> bool:
    """Tell whether `option.entryPoint` names a Python file, and not one of LMI's own handlers."""
    return entry_point is not None and entry_point.endswith(".py") and "://" not in entry_point


def find_script(model_dir: Path | None, entry_point: str | None) -> Path | None:
    """Return the file that answers requests, or None if an engine does. Imports nothing.

    Raises `ConfigError` if `option.entryPoint` names a file that is not there or lacks the function.
    """
    if names_script(entry_point):
        path = (model_dir or Path.cwd()) / str(entry_point)
        if not path.is_file():
            raise ConfigError(f"option.entryPoint={entry_point}: {path} does not exist")
        if FUNCTION not in defined_names(path):
            raise ConfigError(f"option.entryPoint={entry_point}: {path} defines no function {FUNCTION}(inputs)")
        return path
    if entry_point is not None or model_dir is None or not (path := model_dir / SCRIPT).is_file():
        return None
    return path if FUNCTION in defined_names(path) else None


def check_siblings(directory: Path) -> None:
    """Raise `ConfigError` if modules beside the file have names under which the code would import ours instead."""
    for name in _HIDDEN:
        for path in (directory / f"{name}.py", directory / name):
            if path.exists():
                raise ConfigError(f"{path} must have another name: `import {name}` imports a package of the server")


def parse_script(path: Path) -> ast.Module:
    """Return the syntax tree of a file. Raises `ConfigError`, with the line, if it is not Python."""
    try:
        return ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise ConfigError(f"{path}, line {error.lineno}: SyntaxError: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{path} cannot be read as Python ({type(error).__name__})") from error


def defined_names(path: Path) -> set[str]:
    """Return the names that a file defines, imports or assigns at its top level. Raises `ConfigError`."""
    return set(_names(parse_script(path).body))


def _names(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.ImportFrom(module=str(module)) if module.startswith("djl_python."):
                pass  # LMI's own handlers are not here
            case ast.Import() | ast.ImportFrom():
                yield from (item.asname or item.name for item in node.names)
            case ast.Assign():
                yield from (target.id for target in node.targets if isinstance(target, ast.Name))
            case ast.If() | ast.Try():
                yield from _names([*node.body, *node.orelse])
