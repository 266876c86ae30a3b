"""The report as one HTML page, which needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from lmi_handlers.core.terminal import visible
from lmi_handlers.tools.client.comparison import first_difference
from lmi_handlers.tools.replay.replay import Outcome, Told
from lmi_handlers.tools.replay.report import MOST_SHOWN, Summary, totals

_STYLE = """body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem }
:root { color-scheme: light dark } pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0 } th { text-align: left }
table { border-collapse: collapse } td, th { padding: .2rem .6rem; vertical-align: top; border-top: 1px solid #8885 }
.go { color: #18794e } .no-go { color: #cd2b31 } mark { background: #f5d90a; color: #000 }"""


def as_page(summary: Summary, shown: Sequence[Outcome], arguments: Mapping[str, Any]) -> str:
    """Return the page. `shown` are the outcomes with a difference."""
    given = "".join(f"<tr><th>{_text(name)}<td>{_text(value)}" for name, value in arguments.items())
    word, style = ("Go", "go") if summary.go else ("No go", "no-go")
    rows = "".join(row for outcome in shown for row in _rows(outcome))
    left_out = f"<p>These are the first {MOST_SHOWN}; --json has all.</p>" if len(shown) == MOST_SHOWN else ""
    table = f"<h2>Differences</h2>{left_out}<table>{_HEAD}{rows}</table>" if rows else ""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>lmi replay: {word}</title><style>{_STYLE}</style>'
        f'<h1>lmi replay: <span class="{style}">{word}</span></h1><table>{given}</table>'
        f"<h2>Summary</h2><pre>{_text(chr(10).join(totals(summary)))}</pre>{table}</html>\n"
    )


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
    yield "<tr>" + "".join(f"<td>{_text(cell)}" for cell in cells)
    details = _text(outcome.detail)
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
    first, second = (f"{_text(side[:at])}<mark>{_text(side[at:])}</mark>" for side in (old, new))
    return first, second


def _text(value: object) -> str:
    """Return a text as HTML. Characters that would change how the rest is shown are escaped as in a terminal."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return escape(visible(text))
