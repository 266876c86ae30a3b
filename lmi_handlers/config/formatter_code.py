"""Finds the `model.py` files whose formatters an engine's requests and answers pass through, as LMI has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from lmi_handlers.config.custom_code import SCRIPT, defined_names, names_script
from lmi_handlers.config.decorators import INPUT_FORMATTER, OUTPUT_FORMATTER, decorated_functions


class FormatterScript(msgspec.Struct, frozen=True, kw_only=True):
    """A file, and the names of its functions. It is for requests with the `adapter`; "" stands for the model itself."""

    path: str
    adapter: str = ""
    input_formatter: str | None = None
    output_formatter: str | None = None


class FormatterCode(msgspec.Struct, frozen=True, kw_only=True):
    """All formatters of a model. `properties` are the options by LMI's names without `option.`, as text.

    `directory` is the working directory of each call. `requirements` is a file with packages to install first.
    With `follows_adapters`, there are also the formatters of adapters that are loaded while the server runs.
    """

    scripts: tuple[FormatterScript, ...]
    directory: str
    properties: dict[str, str]
    requirements: str | None = None
    follows_adapters: bool = False


def find_formatter_scripts(
    directories: Iterable[Path], entry_point: str | None, output_formatter: str | None, *, with_adapters: bool
) -> tuple[FormatterScript, ...]:
    """Return the files with formatters: the model's own, and those of adapters. Imports nothing.

    `output_formatter` names a function that need not be decorated. Raises `ConfigError` if a file is not Python, or if
    two functions have the same decorator.
    """
    found = {}
    for directory in directories:
        for adapter, path in _places(directory, entry_point, with_adapters=with_adapters):
            functions = decorated_functions(path)
            if not adapter and output_formatter in defined_names(path):
                functions[OUTPUT_FORMATTER] = str(output_formatter)
            if adapter not in found and (script := _script(path, adapter, functions)) is not None:
                found[adapter] = script
    return tuple(found.values())


def script_of_adapter(folder: Path, adapter: str) -> FormatterScript | None:
    """Return the file with the formatters of the adapter in `folder`, None if it has none. Raises as above."""
    path = folder / SCRIPT
    return _script(path, adapter, decorated_functions(path)) if path.is_file() else None


def _script(path: Path, adapter: str, functions: Mapping[str, str]) -> FormatterScript | None:
    if INPUT_FORMATTER not in functions and OUTPUT_FORMATTER not in functions:
        return None
    return FormatterScript(
        path=str(path),
        adapter=adapter,
        input_formatter=functions.get(INPUT_FORMATTER),
        output_formatter=functions.get(OUTPUT_FORMATTER),
    )


def _places(directory: Path, entry_point: str | None, *, with_adapters: bool) -> Iterator[tuple[str, Path]]:
    own = directory / (str(entry_point) if names_script(entry_point) else SCRIPT)
    if own.is_file():
        yield "", own
    if with_adapters:
        yield from ((path.parent.name, path) for path in sorted(directory.glob(f"adapters/*/{SCRIPT}")))
