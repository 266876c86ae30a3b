"""Prints results as aligned Markdown tables, readable in a terminal and in docs/benchmarks.md."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Paired:
    """Our values and a peer's values of one figure, measured in alternating rounds."""

    ours: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The median over the rounds of ours divided by the peer's.

        A temporary slowdown of the machine affects both.
        """
        return statistics.median(ours / peer for ours, peer in zip(self.ours, self.peer, strict=True))

    def row(self, name: str, unit: str, *, scale: float = 1.0, target: Target | None = None) -> list[str]:
        """Return a table row under `PAIRED_HEADER`. The raw figures are medians multiplied by `scale`."""
        ours, peer = (statistics.median(values) * scale for values in (self.ours, self.peer))
        verdict = "" if target is None else target.verdict(ours, self.ratio)
        return [name, number(ours), number(peer), unit, f"{self.ratio:.2f}", verdict]


PAIRED_HEADER = ["", "ours", "peer", "unit", "ours / peer", "target"]


@dataclass(frozen=True)
class Target:
    """The target for a figure, or with `of_ratio` for its ratio.

    The value must be at least `bound`, or with `at_most` at most `bound`.
    """

    bound: float
    of_ratio: bool = True
    at_most: bool = False

    def verdict(self, value: float, ratio: float = 0.0) -> str:
        """Return the target and whether it is met, such as `>= 0.8 x: met`."""
        reached = ratio if self.of_ratio else value
        met = reached <= self.bound if self.at_most else reached >= self.bound
        return f"{'<=' if self.at_most else '>='} {self.bound:g}{' x' if self.of_ratio else ''}: {'met' if met else 'MISSED'}"


def row_without_peer(
    name: str, values: list[float], unit: str, *, scale: float = 1.0, target: Target | None = None
) -> list[str]:
    """Return a table row for a figure without a peer: the median of `values`, multiplied by `scale`."""
    value = statistics.median(values) * scale
    return [name, number(value), "", unit, "", "" if target is None else target.verdict(value)]


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *notes: str) -> None:
    """Print a title, the table and the notes."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    print(f"\n### {title}\n")
    for row in (header, ["-" * width for width in widths], *rows):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
    for note in notes:
        print(f"\n{note}")
    print(flush=True)


def number(value: float) -> str:
    """Return three significant digits, or all digits before the decimal point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
