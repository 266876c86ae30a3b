"""The results as a table in the terminal, as JSON and as one HTML page that needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from lmi_handlers.tools.client.page import html_page, html_text
from lmi_handlers.tools.client.report_files import json_file
from lmi_handlers.tools.conform.run import ApiResult, FeatureResult

_LABELS: Mapping[str, str] = {
    "conforms": "as the reference",
    "differs": "differs",
    "not spoken": "not spoken",
    "error": "error",
}
_WIDTH = 28
_STYLE = """table { width: 100% } caption { text-align: left }
td { overflow-wrap: anywhere } .conforms { color: #2a8a3e } .differs { color: #b26a00 } .error { color: #c62828 }"""


def as_lines(result: ApiResult) -> Iterator[str]:
    """Yield the lines of an API: one with the sum, and one for each feature."""
    conforming = sum(feature.verdict == "conforms" for feature in result.features)
    yield f"{result.api}: {conforming} of {len(result.features)} features as {result.reference}"
    for feature in result.features:
        yield f"  {feature.feature:{_WIDTH}}  {_label(feature):16}  {_counts(feature)}{_detail(feature)}".rstrip()


def as_json(results: Sequence[ApiResult], about: Mapping[str, Any]) -> bytes:
    """Return everything that was found."""
    found = {result.api: {"conforms": result.conforms, **msgspec.to_builtins(result)} for result in results}
    document = {**about, "conforms": all(result.conforms for result in results), "apis": found}
    return json_file(document)


def as_page(results: Sequence[ApiResult], about: Mapping[str, Any]) -> str:
    """Return the page."""
    given = "".join(f"<tr><th>{html_text(name)}<td>{html_text(value)}" for name, value in about.items())
    tables = "".join(
        f"<h2>{html_text(result.api)}</h2><table><caption>{html_text(result.reference)}</caption>"
        f"{''.join(map(_row, result.features))}</table>"
        for result in results
    )
    return html_page("lmi conform", _STYLE, f"<h1>lmi conform</h1><table>{given}</table>{tables}")


def _row(feature: FeatureResult) -> str:
    cells = (_counts(feature), _detail(feature).removeprefix(": "))
    texts = "".join(f"<td>{html_text(text)}" for text in cells)
    return f'<tr><th>{html_text(feature.feature)}<td class="{feature.verdict}">{html_text(_label(feature))}{texts}'


def _label(feature: FeatureResult) -> str:
    return _LABELS[feature.verdict] + (" (accepted)" if feature.accepted and feature.verdict != "conforms" else "")


def _counts(feature: FeatureResult) -> str:
    return f"{feature.conforming} of {len(feature.cases)}"


def _detail(feature: FeatureResult) -> str:
    """Return the first difference, with its vector if the feature has several."""
    if (first := feature.first) is None:
        return ""
    case = f"{first.case}: " if len(feature.cases) > 1 else ""
    return f": {case}{first.difference}"
