"""Finds the functions that a `model.py` marks with LMI's decorators, without importing the file."""

from __future__ import annotations

import ast
from pathlib import Path

from lmi_handlers.config.custom_code import parse_script, top_level
from lmi_handlers.core.errors import ConfigError

INPUT_FORMATTER = "input_formatter"
OUTPUT_FORMATTER = "output_formatter"
INIT_HANDLER = "init_handler"
PREDICTION_HANDLER = "prediction_handler"

_DECORATORS = {
    "djl_python.input_parser.input_formatter": INPUT_FORMATTER,
    "djl_python.output_formatter.output_formatter": OUTPUT_FORMATTER,
    "djl_python.input_parser.init_handler": INIT_HANDLER,
    "djl_python.input_parser.prediction_handler": PREDICTION_HANDLER,
}
"""LMI's modules that define decorators."""

_Function = tuple[str, str, str]
"""Its decorator, its name, and the file and line."""


def decorated_functions(path: Path) -> dict[str, str]:
    """Return decorator -> name of the function, for the decorated functions at the top level of a file.

    Those imported from a module beside the file count, too. Raises `ConfigError` if a file is not Python, or if two
    functions have the same decorator.
    """
    found: dict[str, tuple[str, str]] = {}
    try:
        decorated = _decorated(path, {})
    except RecursionError as error:
        raise ConfigError(f"{path} imports too many files that import each other") from error
    for decorator, name, where in decorated:
        first, first_where = found.setdefault(decorator, (name, where))
        if first != name:
            raise ConfigError(
                f"{path}: only one function can be the @{decorator}, but {first} ({first_where}) and {name} ({where}) both are"
            )
    return {decorator: name for decorator, (name, _) in found.items()}


def _decorated(path: Path, read: dict[Path, dict[_Function, None]]) -> dict[_Function, None]:
    """Return the decorated functions of a file, in order. `read` has those of files that have been, or are being, read.

    So each file is read once, however many others import it.
    """
    found = read[path] = dict[_Function, None]()
    aliases: dict[str, str] = {}
    for node in top_level(parse_script(path)):
        match node:
            case ast.Import():
                for item in node.names:
                    aliases[item.asname or item.name] = item.name
            case ast.ImportFrom(module=str(module), level=0):
                names = {item.name: item.asname or item.name for item in node.names}
                aliases |= {local: f"{module}.{name}" for name, local in names.items()}
                if "*" in names:
                    aliases |= {name: full for full, name in _DECORATORS.items() if full == f"{module}.{name}"}
                sibling = path.parent / f"{module.replace('.', '/')}.py"
                if sibling.is_file():
                    functions = read[sibling] if sibling in read else _decorated(sibling, read)
                    for decorator, name, where in [*functions]:
                        if name in names or "*" in names:
                            found[decorator, names.get(name, name), where] = None
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for mark in node.decorator_list:
                    if (used := _DECORATORS.get(_dotted(mark, aliases))) is not None:
                        found[used, node.name, f"{path.name}, line {node.lineno}"] = None
    return found


def _dotted(node: ast.expr, aliases: dict[str, str]) -> str:
    """Return the full name that a decorator refers to, such as `djl_python.input_parser.input_formatter`."""
    text = ast.unparse(node)
    for end in range(text.count(".") + 1):
        head = text.rsplit(".", end)[0]
        if head in aliases:
            return aliases[head] + text[len(head) :]
    return text
