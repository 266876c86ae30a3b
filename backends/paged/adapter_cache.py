"""The LoRA adapters of an engine whose forward pass is ours: which there are, and which of them are in memory."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.paged.options import DEFAULT_MAX_LORAS
from lmi_handlers.core.errors import InvalidRequest

Reader = Callable[[str, Path], Any]
"""Reads the adapter of a name from a folder and prepares it. Raises `InvalidRequest` if it does not fit the model."""


@dataclass(slots=True)
class _Entry:
    folder: Path
    key: bytes
    pinned: bool
    reading: Future[Any] | None = None


class AdapterCache:
    """Adapters by name. At most `max_cpu_loras` stay in memory: pinned ones, ones in use, and the ones used last.

    Others are read again for their next request, by a thread. `max_loras` is the maximum number in one batch. Only
    `read` may be called from several threads.
    """

    def __init__(self, read: Reader, *, max_loras: int = DEFAULT_MAX_LORAS, max_cpu_loras: int | None = None) -> None:
        self.max_loras = max_loras
        self._max_cpu_loras = max(max_cpu_loras or 0, max_loras)
        self.read = read
        self._entries: dict[str, _Entry] = {}
        self._loaded: OrderedDict[str, Any] = OrderedDict()  # those used last are at the end
        self._numbers = itertools.count(1)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="adapter-reader")

    @property
    def names(self) -> tuple[str, ...]:
        """Names in order of arrival."""
        return tuple(self._entries)

    @property
    def reading(self) -> list[Future[Any]]:
        """The adapters that are being read."""
        return [entry.reading for entry in self._entries.values() if entry.reading is not None]

    def add(self, name: str, folder: Path, adapter: Any, *, pinned: bool = False) -> None:
        """Add what `read` has returned, or replace the adapter of that name. Raises `InvalidRequest` for too many pins."""
        others = sum(entry.pinned for other, entry in self._entries.items() if other != name)
        if pinned and others + 1 >= self._max_cpu_loras:
            raise InvalidRequest(
                f"adapter {name!r} cannot be pinned: {others} are, and one of the {self._max_cpu_loras} places in memory "
                "(option.max_cpu_loras) must be left for the other adapters"
            )
        self._entries[name] = _Entry(folder, f"{next(self._numbers)}".encode(), pinned)
        self._loaded[name] = adapter
        self._loaded.move_to_end(name)
        self._evict(())

    def remove(self, name: str) -> None:
        """Forget an adapter, if there is one. Sequences that use it keep it."""
        self._entries.pop(name, None)
        self._loaded.pop(name, None)

    def key(self, name: str) -> bytes:
        """Return what distinguishes its keys and values in the prefix cache. Another adapter of that name has another."""
        return self._entries[name].key

    def get(self, name: str, in_use: Collection[Any]) -> Any | None:
        """Return the adapter, or None while it is being read or the batch has no place for it.

        `in_use` are those of running sequences. Raises `InvalidRequest` if it was removed or can no longer be read.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise InvalidRequest(f"adapter {name!r} is no longer loaded", field="adapters")
        if name not in self._loaded:
            if entry.reading is None:
                entry.reading = self._reader.submit(self.read, name, entry.folder)
            if not entry.reading.done():
                return None
            reading, entry.reading = entry.reading, None
            try:
                self._loaded[name] = reading.result()
                entry.key = f"{next(self._numbers)}".encode()  # its files may have changed since
            except InvalidRequest:
                raise
            except Exception as error:  # such as too little memory; no other request is affected
                raise InvalidRequest(f"adapter {name!r} cannot be read: {error}", field="adapters") from error
        self._loaded.move_to_end(name)
        self._evict(in_use, but=name)
        adapter = self._loaded[name]
        return adapter if adapter in in_use or len(in_use) < self.max_loras else None

    def _evict(self, in_use: Collection[Any], but: str = "") -> None:
        """Drop the adapters that were not used for longest."""
        surplus = len(self._loaded) - self._max_cpu_loras
        unused = (
            name
            for name, adapter in self._loaded.items()
            if name != but and not self._entries[name].pinned and adapter not in in_use
        )
        for name in list(itertools.islice(unused, max(0, surplus))):
            del self._loaded[name]
