"""DJL's list of named values. A name may occur several times."""

from __future__ import annotations

from typing import Any


class PairList:
    """Names and values in order. Empty values are left out, as DJL does."""

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self.values: list[Any] = []

    def add(self, key: Any = None, value: Any = None) -> None:
        """Append a value."""
        if value:
            self.keys.append(key)
            self.values.append(value)

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
