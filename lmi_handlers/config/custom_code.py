"""Settings of a model's own code, and how to inspect a script without importing it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec

from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import ConfigError

SCRIPT = "model.py"
"""The file that LMI looks for if `option.entryPoint` does not name one."""

FUNCTION = "handle"

REGISTER, UPDATE, UNREGISTER = ADAPTER_FUNCTIONS = ("register_adapter", "update_adapter", "unregister_adapter")
"""Functions beside `FUNCTION` that load and unload adapters, as in LMI."""

MAX_SCRIPT = 4 << 20
"""Bytes of a Python file. Its syntax tree takes a hundred times as many, in the engine too, which looks at an adapter's."""

MAX_CALLS = 32
"""LMI's number of concurrent requests if `option.max_rolling_batch_size` is not set."""

_HIDDEN = ("lmi_handlers", "djl_python")
"""Our top-level packages. They would shadow a model's own module of the same name."""


_RUNS_HERE = "djl_python.huggingface"
"""The only module of LMI's from which `handle` can be imported."""


class CustomCode(msgspec.Struct, frozen=True, kw_only=True):
    """A function that answers requests, and how to get it.

    `loader` is called with this in each process and returns the function: `module:name`, where the module is ours. It
    may raise anything. `path` is what it loads, and `function` is what messages call the function. `directory` is the
    working directory of each call. `properties` are the options by LMI's names without `option.`, as text: the first
    call gets them; a loader that needs them typed has them in `options`. There are so many `processes`, each on one of
    the `gpus`, if there are any, and up to `max_processes` while requests have to wait. In each, an asynchronous
    function answers up to `max_calls` batches at a time. `requirements` is a file with packages to install first. They
    are then in `packages`, which is on `sys.path` before `directory`. The file defines the `adapter_functions`.
    """

    loader: str = "lmi_handlers.custom_code.script:load"
    path: str
    function: str = FUNCTION
    directory: str
    properties: dict[str, str]
    options: ServingProperties | None = None
    processes: int = 1
    max_processes: int = 1
    max_calls: int = MAX_CALLS
    gpus: int = 0
    requirements: str | None = None
    packages: str | None = None
    adapter_functions: tuple[str, ...] = ()


def names_script(entry_point: str | None) -> bool:
    """Tell whether `option.entryPoint` names a Python file, and not one of LMI's own handlers."""
    return entry_point is not None and entry_point.endswith(".py") and "://" not in entry_point


def check_siblings(directory: Path) -> None:
    """Raise `ConfigError` if modules beside the file have names under which the code would import ours instead."""
    for name in _HIDDEN:
        for path in (directory / f"{name}.py", directory / name):
            if path.exists():
                raise ConfigError(f"{path} must have another name: `import {name}` imports a package of the server")


def parse_script(path: Path) -> ast.Module:
    """Return the syntax tree of a file. Raises `ConfigError`, with the line, if it is not Python, or is too long."""
    with path.open("rb") as file:
        source = file.read(MAX_SCRIPT + 1)
    if len(source) > MAX_SCRIPT:
        raise ConfigError(f"{path} has more than {MAX_SCRIPT} bytes")
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise ConfigError(f"{path}, line {error.lineno}: SyntaxError: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{path} cannot be read as Python ({type(error).__name__})") from error


def defined_names(path: Path) -> set[str]:
    """Return the names that a file defines, imports or assigns at its top level. Raises `ConfigError`.

    `*` is among them if it imports all names of another module, which are not known.
    """
    return set(_names(parse_script(path)))


def defines_asynchronous(path: Path, function: str) -> bool:
    """Tell whether a file defines this function as `async def` at its top level. Raises `ConfigError`."""
    return any(
        isinstance(node, ast.AsyncFunctionDef) and node.name == function for node in top_level(parse_script(path))
    )


def top_level(module: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements that are not in a function or class, in order. Those below `if`, `try` or `with` count too."""
    left: list[ast.AST] = [module]
    while left:  # without recursion: a long chain of `elif` is deep
        node = left.pop()
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, _SCOPES):
            left += reversed([child for child in ast.iter_child_nodes(node) if isinstance(child, _STATEMENTS)])


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

_STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)
"""Statements, and the parts of them that hold others."""


def _names(script: ast.Module) -> Iterator[str]:
    for node in top_level(script):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.ImportFrom(module=str(module)) if module.startswith("djl_python.") and module != _RUNS_HERE:
                pass  # LMI's other handlers are not here
            case ast.Import() | ast.ImportFrom():
                yield from (item.asname or item.name for item in node.names)
            case ast.Assign():  # also of several names: a, b = ..
                parts = (part for target in node.targets for part in ast.walk(target))
                yield from (part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                yield name
