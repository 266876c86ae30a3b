"""docs/operating.md explains every line of the log, from the level info."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from paths import ROOT

LEVELS = {
    "info": "info",
    "warning": "warning",
    "error": "error",
    "exception": "error",
    "critical": "critical",
}
VARIABLES = {
    "who_can_connect(addresses, key=key, no_console=no_console)": "only this machine … can connect …`, "
    "`other machines can connect …`, `whoever may open the Unix socket can connect …",
    "excess": "option.kv_cache_memory_bytes=… is … bytes, but only … bytes of memory are free: "
    "the engine may be killed when it uses them",
    "bundle.warning": "the GGUF file …: text is split as for GPT-2, so some of it may become other tokens than in training",
}
"""Messages that are not written where they are logged."""


def rendered(node: ast.expr) -> list[str]:
    """Return the messages that an expression may be, with … for what varies."""
    if isinstance(node, ast.Constant):
        return [re.sub(r"%\w", "…", str(node.value))]
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)]
    if isinstance(node, ast.IfExp):
        return rendered(node.body) + rendered(node.orelse)
    return [VARIABLES[ast.unparse(node)]]


def sources() -> Iterator[Path]:
    for folder in ("lmi_handlers", "backends", "formatters"):
        yield from (ROOT / folder).rglob("*.py")


def logged() -> Iterator[tuple[str, str, Path]]:
    """Yield the level and the message of each call of a logger, and the file that it is in."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name("logger"), attr=level)) if level in LEVELS:
                    yield from ((LEVELS[level], message, path) for message in rendered(node.args[0]))


def test_the_page_explains_every_line_of_the_log() -> None:
    page = (ROOT / "docs" / "operating.md").read_text()
    explained = set(re.findall(r"^\| (info|warning|error|critical) \| `(.*?)` \|", page, re.MULTILINE))
    lines = list(logged())
    assert len(lines) > 60
    assert [f"{path}: {level} {message}" for level, message, path in lines if (level, message) not in explained] == []
    assert explained - {(level, message) for level, message, _ in lines} == set(), "lines that are not written any more"


def test_no_other_way_of_logging_is_used() -> None:
    """Otherwise the test above would miss it."""
    for path in (
        path for folder in ("lmi_handlers", "backends", "formatters") for path in (ROOT / folder).rglob("*.py")
    ):
        for found in re.findall(r"(\w+) = logging\.getLogger", path.read_text()):
            assert found == "logger", path
        assert not re.search(r"\b(logger\.log|logging\.(info|warning|error|exception|critical))\(", path.read_text()), (
            path
        )
