"""docs/errors.md has a row for every code of an error, with the class and the statuses that the code has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from build_site import ROOT

from lmi_handlers.apis.lmi import dialect as lmi
from lmi_handlers.apis.management import status_of
from lmi_handlers.apis.openai import dialect as openai
from lmi_handlers.apis.tgi import dialect as tgi
from lmi_handlers.core import errors
from lmi_handlers.core.errors import ConfigError, LMIError, RefusedByCode, entry_of
from lmi_handlers.sessions.store import UnknownSession

PAGE = (ROOT / "docs" / "errors.md").read_text()
ROWS = re.findall(r"^\| `(\w+)` \| `(\w+)` \| ([^|]+) \| [^|]+ \| [^|]+ \|$", PAGE, re.MULTILINE)

CLASSES: dict[str, type[LMIError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, LMIError)
}
BASES = {errors.LMIError, errors.RequestError, errors.EngineError}
"""They are never raised themselves."""

OF_ADMINISTRATION = (
    errors.AdapterNotFound,
    errors.AdapterExists,
    errors.ModelExists,
    errors.InsufficientMemory,
    errors.RefusedByCode,
)
"""Errors of the routes for models and adapters, which have statuses of their own."""


def causes() -> Iterator[tuple[str, str]]:
    """Find `code=` in all calls that make an error. Returns code and class."""
    for folder in ("lmi_handlers", "backends", "formatters"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CLASSES:
                    for keyword in node.keywords:
                        if keyword.arg == "code" and isinstance(keyword.value, ast.Constant):
                            yield str(keyword.value.value), node.func.id


def status(kind: type[LMIError]) -> str:
    if issubclass(kind, ConfigError):
        return "-"
    error = RefusedByCode("") if kind is RefusedByCode else kind("")
    if issubclass(kind, OF_ADMINISTRATION):
        return str(status_of(error))
    statuses = [lmi.status_of(error), entry_of(error, tgi.STATUS, 424), openai.status_of(error)]
    return ", ".join(map(str, statuses if len(set(statuses)) > 1 else statuses[:1]))


def test_every_code_has_a_row_and_every_row_a_code() -> None:
    own = {(kind.code, name) for name, kind in CLASSES.items() if kind not in BASES}
    expected = own | set(causes()) | {(UnknownSession.code, UnknownSession.__name__)}
    assert {(code, name) for code, name, _ in ROWS} == expected


def test_a_code_has_one_meaning() -> None:
    assert len({code for code, _, _ in ROWS}) == len(ROWS)
    assert len(ROWS) == len([line for line in PAGE.splitlines() if line.startswith("| `")])


@pytest.mark.parametrize(("code", "name", "shown"), ROWS, ids=lambda text: text)
def test_the_status_is_that_of_the_routes(code: str, name: str, shown: str) -> None:
    assert shown == status(CLASSES.get(name, UnknownSession))


def test_a_field_and_a_code_outlive_an_alias() -> None:
    error = errors.UnsupportedFeature("is not supported", field="n", code="a_cause").with_alias(str.upper)
    assert (str(error), error.field, error.code) == ("N: is not supported", "N", "a_cause")
