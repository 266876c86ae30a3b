"""Event stream framing, as botocore's parser reads it, and splitting streams into payload parts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import cast

import pytest
from botocore.eventstream import ChecksumMismatch, EventStreamBuffer, EventStreamMessage
from facts import raises
from hypothesis import example, given
from hypothesis import strategies as st

from lmi_handlers.laptop.sagemaker_runtime.eventstream import (
    MAX_PAYLOAD_LENGTH,
    encode_message,
    model_stream_error,
    payload_part,
    split_parts,
)

HEADERS = st.dictionaries(
    st.text(min_size=1, max_size=60).filter(lambda name: 0 < len(name.encode(errors="replace")) < 256),
    st.text(max_size=300),
    max_size=5,
)
RECORDS = st.lists(
    st.text(max_size=20).map(lambda text: json.dumps({"token": {"text": text}}, ensure_ascii=False).encode() + b"\n")
)


def headers_of(message: EventStreamMessage) -> dict[str, str]:
    return cast("dict[str, str]", message.headers)  # the type stubs say int


def decode(data: bytes) -> list[EventStreamMessage]:
    buffer = EventStreamBuffer()
    buffer.add_data(data)
    return list(buffer)


@given(st.lists(st.tuples(HEADERS, st.binary(max_size=2000)), max_size=4), st.integers(1, 50))
def test_botocore_reads_messages_with_any_fragmentation(
    messages: list[tuple[dict[str, str], bytes]], step: int
) -> None:
    data = b"".join(encode_message(headers, payload) for headers, payload in messages)
    buffer = EventStreamBuffer()
    decoded = []
    for start in range(0, len(data), step):
        buffer.add_data(data[start : start + step])
        decoded += list(buffer)
    assert [(headers_of(message), message.payload) for message in decoded] == messages


@given(st.integers(0, 1 << 17), st.binary(min_size=1, max_size=4))
def test_payload_of_any_size(size: int, pattern: bytes) -> None:
    payload = (pattern * size)[:size]
    [message] = decode(payload_part(payload))
    assert message.payload == payload
    assert headers_of(message) == {
        ":event-type": "PayloadPart",
        ":content-type": "application/octet-stream",
        ":message-type": "event",
    }


def test_largest_payload_is_accepted_and_one_byte_more_is_rejected() -> None:
    [message] = decode(payload_part(bytes(MAX_PAYLOAD_LENGTH)))
    assert len(message.payload) == MAX_PAYLOAD_LENGTH
    with raises(ValueError, "25165824 bytes 25165825"):
        payload_part(bytes(MAX_PAYLOAD_LENGTH + 1))


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"": "x"}, "1 255 0"),
        ({"n" * 256: "x"}, "1 255 256"),
        ({"n": "x" * 32768}, "header 32767 32768"),
        ({f"n{number}": "x" * 32000 for number in range(5)}, "headers 131072 160030"),
    ],
)
def test_headers_over_the_limits_are_rejected(headers: dict[str, str], message: str) -> None:
    with raises(ValueError, message):
        encode_message(headers, b"")


@given(st.data())
def test_checksums_cover_every_byte(data: st.DataObject) -> None:
    message = payload_part(b"hello")
    position = data.draw(st.integers(0, len(message) - 1))
    damaged = bytearray(message)
    damaged[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ChecksumMismatch):
        decode(bytes(damaged))


def test_model_stream_error() -> None:
    [message] = decode(model_stream_error("StreamBroken", "gone"))
    assert headers_of(message)[":message-type"] == "exception"
    assert headers_of(message)[":exception-type"] == "ModelStreamError"
    assert json.loads(message.payload) == {"Message": "gone", "ErrorCode": "StreamBroken"}


@given(st.lists(st.binary(max_size=40)) | RECORDS)
@example([])
@example([b""])
@example([b"a"])
@example([b"ab", b""])
def test_splitting_preserves_the_bytes_and_is_reproducible(chunks: list[bytes]) -> None:
    parts = list(split_parts(chunks))
    assert b"".join(parts) == b"".join(chunks)
    assert all(parts)
    assert list(split_parts(chunks)) == parts


@given(st.lists(st.binary(min_size=3, max_size=40)))
def test_splitting_holds_back_few_bytes(chunks: list[bytes]) -> None:
    taken = sent = 0

    def counted() -> Iterator[bytes]:
        nonlocal taken
        for chunk in chunks:
            taken += len(chunk)
            yield chunk

    for part in split_parts(counted()):
        assert taken - sent <= 4 * 40
        sent += len(part)


def test_streams_are_split_at_every_kind_of_hostile_position() -> None:
    records = [
        json.dumps({"token": {"text": text}}, ensure_ascii=False).encode() + b"\n" for text in ["a", "ü", "🦙"] * 4
    ]
    parts = list(split_parts(records))
    assert any(len(part) == 1 for part in parts)
    assert any(part.count(b"\n") > 1 for part in parts), "several records in one part"
    assert any(part and part[0] & 0xC0 == 0x80 for part in parts), "a part begins inside a character"
    assert parts[-1] == b"\n"


def test_ascii_records_are_split_inside() -> None:
    records = [b'{"token": {"text": "a"}}\n'] * 8
    ends = list(itertools.accumulate(map(len, split_parts(records))))
    assert [end for end in ends if end % 25 == 0] == [200], "only the last part ends with a record"


def test_character_is_split_at_any_position() -> None:
    assert list(split_parts(["aü".encode() + b"a" * 20])) == [b"a", b"\xc3", b"\xbc" + b"a" * 19, b"a"]


def test_bytes_before_a_failure_are_sent_first() -> None:
    def broken() -> Iterator[bytes]:
        yield from (b"one\n", b"two\n", b"three\n")
        raise ConnectionError("gone")

    parts = split_parts(broken())
    received: list[bytes] = []
    with pytest.raises(ConnectionError, match="gone"):
        received.extend(parts)
    assert b"".join(received) == b"one\ntwo\nthree\n"
