"""The adapters that a server has been told to serve. A file in the runtime directory, which all its engines follow."""

from __future__ import annotations

import contextlib
import fcntl
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.files import write_whole

FILE_NAME = "adapters.json"
MAX_ADAPTERS = 1000
"""Adapters of one server. All web workers know their names."""
_NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,128}")


class RegisteredAdapter(msgspec.Struct, frozen=True):
    """The source of an adapter, and whether it always stays in memory.

    `folder` has its files: all engines of a model read the same ones, even if the source changes. An adapter that is
    replaced gets another `version`, even if the source is the same. The model's own have 0. `options` are for a model's
    own code.
    """

    source: str
    pinned: bool = False
    version: int = 0
    folder: str = ""
    options: dict[str, str] = {}

    @property
    def is_own(self) -> bool:
        """True if it came with the model, wherever the model was downloaded to this time."""
        return self.version == 0


Adapters = dict[str, RegisteredAdapter]
"""Adapters by name, in order of arrival."""


def read_registry(runtime_dir: Path) -> Adapters | None:
    """Return the registered adapters, or None before an engine has loaded for the first time."""
    try:
        data = (runtime_dir / FILE_NAME).read_bytes()
    except FileNotFoundError:
        return None
    return msgspec.json.decode(data, type=Adapters)


@contextlib.contextmanager
def changing(runtime_dir: Path) -> Iterator[Adapters]:
    """Yield the registered adapters, to be changed in place. No other engine changes them meanwhile.

    A process that reads or dies meanwhile sees all of the old or all of the new ones. Nothing is written if nothing has
    changed, so that an engine can be restarted while the disk is full.
    """
    with (runtime_dir / f"{FILE_NAME}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = read_registry(runtime_dir)
        adapters = dict(before or {})
        yield adapters
        if adapters == before:
            return
        write_whole(runtime_dir / FILE_NAME, msgspec.json.encode(adapters))


def check_name(name: str) -> None:
    """Raise `InvalidRequest` unless `name` is one path segment that needs no quoting."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            "must have 1 to 128 letters, digits, dots, dashes or underscores, and not begin with a dot, "
            f"got {name[:64]!r}",
            field="name",
        )
