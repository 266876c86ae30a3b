"""The result of a replay: how many answers are equal, what changed, and whether that is within the thresholds."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.tools.client.comparison import Kind
from lmi_handlers.tools.replay.replay import BROKEN, FAILED, UNRECORDED, Outcome

MEANINGS: Mapping[str, str] = {
    Kind.EQUAL.value: "byte for byte, but for ids and times",
    Kind.FORM.value: "sampled without a seed: the same format",
    Kind.ROUNDING.value: "numbers, or a token, almost as probable",
    Kind.VALUES.value: "the same text, another value in a field",
    Kind.TEXT.value: "another text",
    Kind.FORMAT.value: "other fields, types or framing",
    Kind.STATUS.value: "another status",
    FAILED: "no complete answer",
    UNRECORDED: "answered, with nothing to compare it with",
    BROKEN: "lines that could not be read, and were not sent",
}
"""The outcomes of requests, with their meaning."""

_ALLOWED = {Kind.FORM.value: "100%", Kind.ROUNDING.value: "100%", UNRECORDED: "100%"}
"""Thresholds of outcomes that say nothing against a move. The others' are 0: nobody knows what a broken line says."""

MOST_SHOWN = 500
"""Outcomes that are kept for people to read."""

_MOST_CAUSES = 1000
_CAUSES_SHOWN = 20


class Threshold(msgspec.Struct, frozen=True):
    """The largest number or share of requests that may have an outcome."""

    number: float
    is_share: bool

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """Read `3` or `0.5%`. Raises `ValueError`."""
        number = float(text.removesuffix("%"))
        if not 0 <= number < float("inf"):
            raise ValueError(text)
        is_share = text.endswith("%")
        return cls(number / 100 if is_share else number, is_share)

    def holds(self, count: int, of: int) -> bool:
        return count <= (self.number * of if self.is_share else self.number)

    def __str__(self) -> str:
        return f"{self.number:.4g}" if not self.is_share else f"{100 * self.number:.4g}%"


def parse_thresholds(given: Sequence[str]) -> dict[str, Threshold]:
    """Read thresholds such as `text:1%`, and return those of all outcomes. Raises `ConfigError`."""
    found = {kind: Threshold.parse(_ALLOWED.get(kind, "0")) for kind in MEANINGS if kind != Kind.EQUAL.value}
    for text in given:
        kind, _, limit = text.partition(":")
        try:
            threshold = Threshold.parse(limit)
        except ValueError:
            kind, threshold = "", None
        if kind not in found or threshold is None:
            raise ConfigError(f"--allow {text!r} is not a threshold such as text:3 or text:1% ({', '.join(found)})")
        found[kind] = threshold
    return found


class Change(msgspec.Struct, frozen=True):
    """A difference that `count` answers have in common."""

    kind: str
    detail: str
    count: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The result. `objections` say why it is no go: there is none if it is a go. Times are in seconds."""

    go: bool
    objections: Sequence[str]
    requests: int
    outcomes: Mapping[str, int]
    changes: Sequence[Change]
    but_for: Mapping[str, int]
    recorded_tokens: int
    tokens: int
    first_token_seconds: Mapping[str, float]
    total_seconds: Mapping[str, float]


class Collector:
    """Counts outcomes, and keeps those that people may want to read. Its memory is bounded, but for 16 bytes a request."""

    def __init__(self, thresholds: Mapping[str, Threshold]) -> None:
        self._thresholds = thresholds
        self._outcomes: Counter[str] = Counter()
        self._changes: Counter[tuple[str, str]] = Counter()
        self._but_for: Counter[str] = Counter()
        self._first, self._total = array("d"), array("d")
        self._tokens = [0, 0]
        self.shown: list[Outcome] = []
        """The first outcomes with a difference."""

    def add(self, outcome: Outcome) -> None:
        """Count a request."""
        self._outcomes[outcome.kind] += 1
        self._but_for.update(name for name in outcome.but_for if outcome.kind == Kind.EQUAL.value)
        for index, told in enumerate((outcome.recorded, outcome.answer)):
            self._tokens[index] += (told.tokens or 0) if told is not None else 0
        if outcome.first_token_seconds is not None:
            self._first.append(outcome.first_token_seconds)
        if outcome.total_seconds is not None:
            self._total.append(outcome.total_seconds)
        if outcome.kind in (Kind.EQUAL.value, Kind.FORM.value, UNRECORDED):
            return
        change = outcome.kind, _general(outcome)
        if change in self._changes or len(self._changes) < _MOST_CAUSES:
            self._changes[change] += 1
        if len(self.shown) < MOST_SHOWN:
            self.shown.append(outcome)

    def summary(self) -> Summary:
        """Return the result so far."""
        requests = self._outcomes.total()
        objections = [
            f"{kind}: {count} of {requests}, allowed are {self._thresholds[kind]}"
            for kind in MEANINGS
            if (count := self._outcomes[kind]) and kind in self._thresholds
            if not self._thresholds[kind].holds(count, requests)
        ]
        if not requests - sum(self._outcomes[kind] for kind in (FAILED, UNRECORDED, BROKEN)):
            objections.append("no answer was compared")
        return Summary(
            go=not objections,
            objections=objections,
            requests=requests,
            outcomes={kind: self._outcomes[kind] for kind in MEANINGS if self._outcomes[kind]},
            changes=[Change(kind, detail, count) for (kind, detail), count in self._changes.most_common(_CAUSES_SHOWN)],
            but_for=dict(self._but_for.most_common()),
            recorded_tokens=self._tokens[0],
            tokens=self._tokens[1],
            first_token_seconds=_percentiles(self._first),
            total_seconds=_percentiles(self._total),
        )


_PLACE = re.compile(r"\[[0-9]+\]|^record [0-9]+: ")


def _general(outcome: Outcome) -> str:
    """Return the difference without what is different in each answer: numbers of items and records, and texts."""
    if outcome.kind in (Kind.TEXT.value, Kind.ROUNDING.value) and outcome.detail.startswith("the text parts"):
        return "the text"
    return _PLACE.sub(lambda found: "[]" if found[0].startswith("[") else "", outcome.detail)


def _percentiles(values: array[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {f"p{share}": ordered[(len(ordered) - 1) * share // 100] for share in (50, 90, 99)} if ordered else {}


def lines(summary: Summary, shown: Sequence[Outcome], most: int = 20) -> Iterator[str]:
    """Yield the report for people, with at most `most` differences."""
    for outcome in shown[:most]:
        yield f"#{outcome.number} {outcome.place}: {outcome.kind}: {outcome.detail}"
        if outcome.offset is not None:
            yield f"    byte {outcome.offset} was  {outcome.expected!r}"
            yield f"    {'':{len(str(outcome.offset)) + 5}} now  {outcome.received!r}"
    if len(shown) > most:
        yield f"(and {len(shown) - most}{' or more' if len(shown) == MOST_SHOWN else ''} others: --page or --json)"
    if shown:
        yield ""
    yield from totals(summary)


def totals(summary: Summary) -> Iterator[str]:
    """Yield the lines that sum up a replay."""
    width = max(map(len, MEANINGS))
    yield f"{summary.requests} request{'' if summary.requests == 1 else 's'}"
    for kind, count in summary.outcomes.items():
        yield f"  {kind:{width}}  {count:7}  {MEANINGS[kind]}"
    if summary.but_for:
        yield f"Not compared: {', '.join(summary.but_for)}"
    if summary.tokens or summary.recorded_tokens:
        yield f"Tokens: {summary.recorded_tokens} recorded, {summary.tokens} now"
    for name, values in (("First token", summary.first_token_seconds), ("Complete answer", summary.total_seconds)):
        if values:
            yield f"{name}: " + ", ".join(f"{share} {1000 * value:.0f} ms" for share, value in values.items())
    if summary.changes:
        yield "What changed:"
        for change in summary.changes:
            yield f"  {change.count:7} x {change.kind}: {change.detail}"
    if not summary.go:
        yield f"NO-GO: {'; '.join(summary.objections)}"
    elif summary.outcomes.keys() <= {Kind.FORM.value, UNRECORDED}:
        yield "GO, but only formats were compared: every answer was drawn"
    else:
        yield "GO"
