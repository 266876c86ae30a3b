"""How files are split into records, and records put into requests."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmi_handlers.tools.batch_transform.records import SPLITTERS, InvalidFile, Record, TooLarge, batches
from lmi_handlers.tools.batch_transform.settings import Choices, ExecutionParameters, SplitType, settle

MAGIC = struct.pack("<I", 0xCED7230A)


def split(kind: SplitType, data: bytes, limit: int = 1000) -> list[Record]:
    return list(SPLITTERS[kind](io.BytesIO(data), limit))


def recordio(data: bytes, flag: int = 0) -> bytes:
    return MAGIC + struct.pack("<I", flag << 29 | len(data)) + data + bytes(-len(data) % 4)


def tfrecord(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + b"csum" + data + b"csum"


@given(st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line)))
def test_lines_are_all_that_are_not_blank(lines: list[bytes]) -> None:
    expected = [line + b"\n" for line in lines if line.strip()]
    assert split("Line", b"".join(line + b"\n" for line in lines)) == expected
    assert b"".join(map(bytes, split("Line", b"\n".join(lines)))).split() == b"".join(expected).split()


@pytest.mark.parametrize(("kind", "frame"), [("RecordIO", recordio), ("TFRecord", tfrecord)])
@pytest.mark.parametrize("records", [[], [b""], [b"a", b"bc" * 100, b"def\n"]], ids=len)
def test_binary_records_keep_their_frames(kind: SplitType, frame: object, records: list[bytes]) -> None:
    framed = [frame(record) for record in records]  # type: ignore[operator]
    assert split(kind, b"".join(framed)) == framed
    if framed:
        with pytest.raises(InvalidFile, match="cut off"):
            split(kind, b"".join(framed)[:-1])


def test_parts_of_a_recordio_record_stay_together() -> None:
    whole = recordio(b"one", 1) + recordio(b"between", 2) + recordio(b"end", 3)
    assert split("RecordIO", whole + recordio(b"x")) == [whole, recordio(b"x")]
    with pytest.raises(InvalidFile, match="magic"):
        split("RecordIO", b"not RecordIO at all")


@pytest.mark.parametrize(
    ("kind", "data", "records"),
    [
        ("Line", b"a\n" + b"x" * 200_000 + b"\nb", [b"a\n", TooLarge(200_001), b"b"]),
        ("Line", b"x" * 999 + b"\n" + b"x" * 1000 + b"\n", [b"x" * 999 + b"\n", TooLarge(1001)]),
        ("RecordIO", recordio(b"x" * 2000) + recordio(b"b"), [TooLarge(2008), recordio(b"b")]),
        ("TFRecord", tfrecord(b"x" * 2000) + tfrecord(b"b"), [TooLarge(2016), tfrecord(b"b")]),
        ("None", b"x" * 1000, [b"x" * 1000]),
        ("None", b"x" * 100_000, [TooLarge(100_000)]),
        ("None", b"", [b""]),
    ],
)
def test_record_larger_than_a_request_is_skipped(kind: SplitType, data: bytes, records: list[Record]) -> None:
    assert split(kind, data) == records


def test_requests_are_as_full_as_they_may_be() -> None:
    choices = Choices(content_type="text/csv", max_payload_in_mb=1, max_records=3)
    settings = settle(choices, ExecutionParameters(), "rows.csv")
    lines = [b"x" * 600_000 + b"\n", b"a\n", b"b\n", b"y" * 600_000 + b"\n", b"c\n", b"d\n", b"e\n"]
    found = list(batches(io.BytesIO(b"".join(lines)), settings))
    assert found == [lines[:3], lines[3:6], lines[6:]]
    single = settle(Choices(content_type="text/csv", batch_strategy="SingleRecord"), ExecutionParameters(), "rows.csv")
    assert list(batches(io.BytesIO(b"a\nb\n"), single)) == [[b"a\n"], [b"b\n"]]
