"""DJL's list of named values. A name may occur several times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class PairList:
    """Names and values in order. None is left out, as DJL does, and empty values are kept."""

    def __init__(
        self,
        keys: list[Any] | None = None,
        values: list[Any] | None = None,
        pair_list: Iterable[tuple[Any, Any]] | None = None,
        pair_map: Mapping[Any, Any] | None = None,
    ) -> None:
        if keys and values and len(keys) != len(values):
            raise ValueError(f"a list of {len(keys)} keys needs as many values, got {len(values)}")
        self.keys: list[Any] = keys if keys and values else []
        self.values: list[Any] = values if keys and values else []
        if not self.keys:
            for pair in pair_list or (pair_map or {}).items():
                self.add(pair=pair)

    def add(
        self, key: Any = None, value: Any = None, index: int | None = None, pair: tuple[Any, Any] | None = None
    ) -> None:
        """Append a value, or insert it at `index`."""
        if pair is not None:
            key, value = pair
        if value is not None:
            at = len(self.keys) if index is None else index
            self.keys.insert(at, key)
            self.values.insert(at, value)

    def add_all(self, other: PairList | None) -> None:
        """Append the values of another list."""
        if other is not None:
            self.keys.extend(other.keys)
            self.values.extend(other.values)

    def size(self) -> int:
        return len(self.keys)

    def is_empty(self) -> bool:
        return not self.keys

    def get(self, key: Any) -> Any:
        """Return the first value with this name, or None."""
        return self.values[self.keys.index(key)] if key in self.keys else None

    def key_at(self, index: int) -> Any:
        return self.keys[index]

    def value_at(self, index: int) -> Any:
        return self.values[index]

    def get_keys(self) -> list[Any]:
        return self.keys

    def get_values(self) -> list[Any]:
        return self.values
