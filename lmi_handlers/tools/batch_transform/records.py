"""Splits a file into records and puts records together, as `SplitType` and `BatchStrategy` say.

A file of any size is read in pieces. Records are as they are in the file, with what frames them: a line keeps its
newline, a RecordIO or TFRecord record its header, so several of them are such a file again. Checksums of TFRecords are
not verified.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple

from lmi_handlers.core.errors import LMIError
from lmi_handlers.tools.batch_transform.settings import Settings, SplitType


class InvalidFile(LMIError):
    """The file is not what its settings say: a frame is cut off, it is not compressed, it cannot be read."""


class TooLarge(NamedTuple):
    """A record that has more bytes than a request may have."""

    size: int


Record = bytes | TooLarge


def batches(file: IO[bytes], settings: Settings) -> Iterator[list[Record]]:
    """Yield the records of each request, in order. Raises `InvalidFile`."""
    batch: list[Record] = []
    size = 0
    most = settings.max_records if settings.several else 1
    for record in SPLITTERS[settings.split_type](file, settings.max_payload):
        length = 0 if isinstance(record, TooLarge) else len(record)
        if batch and (len(batch) == most or size + length > settings.max_payload):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += length
    if batch:
        yield batch


def whole(file: IO[bytes], limit: int) -> Iterator[Record]:
    """Yield the whole file."""
    data = file.read(limit + 1)
    yield TooLarge(_skip(file, len(data))) if len(data) > limit else data


def lines(file: IO[bytes], limit: int) -> Iterator[Record]:
    """Yield each line that is not blank."""
    while line := file.readline(limit + 1):
        size = len(line)
        if size > limit:
            while not line.endswith(b"\n") and (line := file.readline(_PIECE)):
                size += len(line)
            yield TooLarge(size)
        elif not line.isspace():
            yield line


def recordio(file: IO[bytes], limit: int) -> Iterator[Record]:
    """Yield each record of an MXNet RecordIO file: magic number, flag and length, data padded to four bytes.

    Data that contains the magic number is in parts: the flag is 1 for the first, 2 for those between, 3 for the last.
    """
    parts: list[bytes] = []
    size = 0
    while header := _exactly(file, 8, or_end=not parts):
        magic, word = struct.unpack("<II", header)
        if magic != _RECORDIO_MAGIC:
            raise InvalidFile("it is not RecordIO: a record does not begin with the magic number")
        length = (word & _LENGTH_BITS) + 3 & ~3
        size += 8 + length
        parts.append(header)
        if size <= limit:
            parts.append(_exactly(file, length))
        else:
            _skip_exactly(file, length)
        if word >> 29 in (0, 3):
            yield b"".join(parts) if size <= limit else TooLarge(size)
            parts, size = [], 0


def tfrecord(file: IO[bytes], limit: int) -> Iterator[Record]:
    """Yield each TFRecord: length, checksum, data, checksum."""
    while header := _exactly(file, 12, or_end=True):
        (length,) = struct.unpack("<Q", header[:8])
        if 16 + length > limit:
            _skip_exactly(file, length + 4)
            yield TooLarge(16 + length)
        else:
            yield header + _exactly(file, length + 4)


SPLITTERS: dict[SplitType, Callable[[IO[bytes], int], Iterator[Record]]] = {
    "None": whole,
    "Line": lines,
    "RecordIO": recordio,
    "TFRecord": tfrecord,
}

_PIECE = 1 << 16
_RECORDIO_MAGIC = 0xCED7230A
_LENGTH_BITS = (1 << 29) - 1


def _exactly(file: IO[bytes], size: int, *, or_end: bool = False) -> bytes:
    data = file.read(size)
    if len(data) != size and not (or_end and not data):
        raise InvalidFile("it is cut off in the middle of a record")
    return data


def _skip_exactly(file: IO[bytes], size: int) -> None:
    while size:
        size -= len(_exactly(file, min(size, _PIECE)))


def _skip(file: IO[bytes], size: int) -> int:
    """Read to the end. Returns the number of bytes, `size` included."""
    while piece := file.read(_PIECE):
        size += len(piece)
    return size
