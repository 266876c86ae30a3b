"""The report as one HTML page, which needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lmi_handlers.tools.client.comparison import first_difference
from lmi_handlers.tools.client.page import html_page, html_text
from lmi_handlers.tools.replay.replay import Outcome, Told
from lmi_handlers.tools.replay.report import MOST_SHOWN, Summary, totals

_STYLE = """pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0 }
.go { color: #18794e } .no-go { color: #cd2b31 } mark { background: #f5d90a; color: #000 }"""


def as_page(summary: Summary, shown: Sequence[Outcome], arguments: Mapping[str, Any]) -> str:
    """Return the page. `shown` are the outcomes with a difference."""
    given = "".join(f"<tr><th>{html_text(name)}<td>{html_text(value)}" for name, value in arguments.items())
    word, style = ("Go", "go") if summary.go else ("No go", "no-go")
    rows = "".join(row for outcome in shown for row in _rows(outcome))
    left_out = f"<p>These are the first {MOST_SHOWN}; --json has all.</p>" if len(shown) == MOST_SHOWN else ""
    table = f"<h2>Differences</h2>{left_out}<table>{_HEAD}{rows}</table>" if rows else ""
    body = (
        f'<h1>lmi replay: <span class="{style}">{word}</span></h1><table>{given}</table>'
        f"<h2>Summary</h2><pre>{html_text(chr(10).join(totals(summary)))}</pre>{table}"
    )
    return html_page(f"lmi replay: {word}", _STYLE, body)


_HEAD = "<tr><th>Request<th>Outcome<th>Status<th>Finish reason<th>Tokens<th>First token<th>Total"


def _rows(outcome: Outcome) -> Iterator[str]:
    mine, other = outcome.recorded, outcome.answer
    cells = [
        f"{outcome.number} ({outcome.place})",
        outcome.kind,
        _both(mine, other, "status"),
        _both(mine, other, "finish_reason"),
        _both(mine, other, "tokens"),
        _milliseconds(outcome.first_token_seconds),
        _milliseconds(outcome.total_seconds),
    ]
    yield "<tr>" + "".join(f"<td>{html_text(cell)}" for cell in cells)
    details = html_text(outcome.detail)
    if outcome.offset is not None:
        expected, received = _marked(outcome.expected, outcome.received)
        details += f"<pre>byte {outcome.offset} was {expected}</pre><pre>now {received}</pre>"
    yield f"<tr><td><td colspan=6>{details}"


def _both(mine: Told | None, other: Told | None, name: str) -> str:
    """Return a value of the recorded answer and of the new one, or one if they are equal."""
    values = ["" if told is None else getattr(told, name) for told in (mine, other)]
    old, new = ("" if value is None else str(value) for value in values)
    return new if old in (new, "") else f"{old}, now {new or 'none'}"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.0f} ms"


def _marked(expected: str, received: str) -> tuple[str, str]:
    """Return both contexts with a mark where they begin to differ."""
    old, new = expected.encode(), received.encode()
    place = first_difference(old, new)
    at = len(old if place is None else old[:place].decode(errors="ignore").encode())
    first, second = (f"{html_text(side[:at])}<mark>{html_text(side[at:])}</mark>" for side in (old, new))
    return first, second
