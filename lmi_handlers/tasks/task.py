"""The base of all tasks: a task turns `inputs` into items, and computes the results of many items at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec

from lmi_handlers.config.options import ServingProperties

Item = TypeVar("Item")

MAX_ROWS = 64
"""Rows of one forward pass. More items are computed in several passes, those of similar length together."""

MAX_ITEMS = 256
"""Texts, images or sounds in one request."""


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `parameters` of a request. `UNSET` leaves a parameter to the library or the model."""

    def given(self) -> dict[str, Any]:
        """Return the parameters that are set."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in values.items() if value is not msgspec.UNSET}


class Task(ABC):
    """A loaded model and its computation."""

    parameters: ClassVar[type[Parameters]] = Parameters
    unwraps: ClassVar[bool] = False
    """True if the answer to a single item is its result itself, and not a list of one result as in LMI."""
    reads_files: ClassVar[bool] = False
    """True if a body without a content type is a file, unless it looks like JSON."""
    compact: ClassVar[bool] = False
    """True if answers are written without the line breaks of LMI's, which would take seconds for many numbers."""

    is_unwanted: Callable[[], bool] = staticmethod(lambda: False)
    """Tells whether nobody waits for the answers to the current batch any more."""

    @classmethod
    @abstractmethod
    def load(cls, name: str, path: Path, properties: ServingProperties) -> Task:
        """Load the model in `path` for the task `name`. Raises `ConfigError`, or `LoadFailed` if a retry may help."""

    @abstractmethod
    def items(self, inputs: object) -> tuple[list[Any], bool]:
        """Return the items in `inputs`, and whether that is a single one. Raises `InvalidRequest` with the field.

        A list has as many items as elements, and anything else is one item.
        """

    def check(self, items: Sequence[Any], parameters: Any) -> None:
        """Raise `InvalidRequest` if the items cannot be computed with these parameters."""

    @abstractmethod
    def run(self, items: list[Any], parameters: Any) -> list[Any]:
        """Return one result per item, as JSON values or numpy's. It may raise anything."""

    def stream(self, items: list[Any], parameters: Any) -> Iterator[Any] | None:  # noqa: ARG002  for overrides
        """Return the lines of the answer if the parameters ask for a stream."""
        return None


def by_length(
    items: Sequence[Item], length: Callable[[Item], int], compute: Callable[[list[Item]], list[Any]]
) -> list[Any]:
    """Return the results of `compute` for items of similar length together, in the order of the items."""
    order = sorted(range(len(items)), key=lambda place: length(items[place]))
    results: list[Any] = [None] * len(items)
    for place, result in zip(order, compute([items[place] for place in order]), strict=True):
        results[place] = result
    return results


def passes(rows: Sequence[Item]) -> list[Sequence[Item]]:
    """Split rows into those of one forward pass each."""
    return [rows[start : start + MAX_ROWS] for start in range(0, len(rows), MAX_ROWS)]
