"""Unpacks tar.gz archives, whose content may be hostile."""

from __future__ import annotations

import gzip
import re
import tarfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.model_files.names import check_name

MAX_MEMBERS = 100_000
MAX_RATIO = 20
"""Weights hardly shrink, so an archive that grows more than this is no model."""
_LEAST_LIMIT = 1 << 30
_MAX_READ = 1 << 20
_MAX_HEADER = 1 << 14
"""Bytes that `tarfile` may read for one member's headers. A path has at most 4,096."""
_MAX_LONG_HEADERS = 1 << 20
_LONG = 1 << 10
"""Bytes from which a header is a long one. `tarfile` needs quadratic time for some contents of headers."""
_DIGITS = re.compile(rb"[0-9]{200}")
_INTERVAL = 1.0
_END = bytes(tarfile.BLOCKSIZE)
"""The bytes after the last member."""
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError, ValueError, OverflowError, RecursionError)
"""The last three are what `tarfile` raises for the fields of a hostile header."""


class _Member(tarfile.TarInfo):
    """A header. Refuses those that `tarfile` would keep for all later members, or follow through the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        found = super().frombuf(buf, encoding, errors)
        if found.type in (tarfile.XGLTYPE, tarfile.GNUTYPE_SPARSE):
            raise tarfile.ReadError("global headers and sparse files are not supported")
        return found


class _Unpacked(gzip.GzipFile):
    """The tar file in `archive`. While `reads_headers`, refuses what `tarfile` reads for one that claims to be huge."""

    def __init__(self, archive: BinaryIO, progress: Callable[[int], None]) -> None:
        super().__init__(fileobj=archive)
        self._archive = archive
        self._progress = progress
        self._reported = time.monotonic()
        self.last_read = b""
        self._of_header = self._of_long_headers = 0
        self.reads_headers = True

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _MAX_READ:
            raise tarfile.ReadError("a header is too long")
        if self.reads_headers:
            self._of_header += size
            self._of_long_headers += size if size > _LONG else 0
            if self._of_header > _MAX_HEADER or self._of_long_headers > _MAX_LONG_HEADERS:
                raise tarfile.ReadError("a header is too long")
        if time.monotonic() - self._reported >= _INTERVAL:
            self._reported = time.monotonic()
            self._progress(self._archive.tell())
        self.last_read = super().read(size)
        if self.reads_headers and size > _LONG and _DIGITS.search(self.last_read):
            raise tarfile.ReadError("a header has a number that is too long")
        return self.last_read

    def begin_header(self) -> None:
        """Expect the header of the next member."""
        self._of_header = 0
        self.reads_headers = True


def unpack(
    archive: Path, folder: Path, *, name: str, make_room: Callable[[int], int], progress: Callable[[int], None]
) -> None:
    """Unpack regular files and folders into `folder`.

    `make_room` is called with the size of a file before it is written, unless there was room for it the last time. It
    returns how many more bytes there is room for after that file. `name` is for messages. `progress` is called about
    once per second with the bytes of the archive that have been read.

    Raises `ConfigError` for anything else in the archive, for names that leave the folder, and for too many or too
    large files. Raises `OSError` if a file cannot be written, and what `make_room` raises.
    """
    limit = max(_LEAST_LIMIT, MAX_RATIO * archive.stat().st_size)
    room = 0
    total = count = 0
    path = ""
    try:
        with (
            archive.open("rb") as file,
            _Unpacked(file, progress) as data,
            tarfile.open(fileobj=data, mode="r:", tarinfo=_Member) as members,
        ):
            for member in members:
                data.begin_header()  # of the next one: `tarfile` has read this one
                count += 1
                path = member.name.removeprefix("./")
                if path == "." or not path:
                    continue
                check_name(path, name)
                if not (member.isreg() or member.isdir()) or member.issparse() or member.size < 0:
                    raise ConfigError(f"{name} holds {path!r}, which is neither a file nor a folder")
                total += member.size
                if count > MAX_MEMBERS or total > limit or member.offset_data > limit:
                    raise ConfigError(f"{name} holds more than {MAX_MEMBERS:,} files, or more than {limit:,} bytes")
                room = room - member.size if member.size <= room else make_room(member.size)
                data.reads_headers = False
                members.extract(member, folder, filter="data")
                data.reads_headers = True
                members.members = []  # type: ignore[attr-defined]  # ours are read once, and 100,000 of them take 100 MB
            if data.last_read != _END:  # tarfile takes a header that it cannot read for the end
                raise tarfile.ReadError("a header is damaged or missing")
            data.reads_headers = False
            while data.tell() <= limit and data.read(_MAX_READ):
                pass  # gzip's checksum is at its end
    except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        raise ConfigError(f"{name} holds {path!r} as a file and as a folder, or in a file") from error
    except _DAMAGED as error:
        raise ConfigError(f"{name} is not a tar.gz archive, or damaged: {error}") from error
