"""AWS's event stream format, which frames the answer of `InvokeEndpointWithResponseStream`.

The layout of a message; integers are big-endian, both checksums are zlib's CRC-32:

    4 bytes   length of the whole message
    4 bytes   length of the headers
    4 bytes   checksum of the 8 bytes before
    headers   each: 1 byte length of the name, name, 1 byte type (7: a string), 2 bytes length of the value, value
    payload
    4 bytes   checksum of everything before

Source: the encoding "vnd.amazon.eventstream" of the Smithy specification. It is written by hand because botocore
can only read the format, and smithy-aws-event-stream is a pre-alpha release that needs Python 3.12.
"""

from __future__ import annotations

import itertools
import json
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping

CONTENT_TYPE = "application/vnd.amazon.eventstream"
MAX_HEADERS_LENGTH = 128 * 1024
MAX_PAYLOAD_LENGTH = 24 * 1024 * 1024

_LENGTHS = struct.Struct(">II")
_CHECKSUM = struct.Struct(">I")
_VALUE_HEAD = struct.Struct(">BH")
_STRING = 7
_FRAME_LENGTH = _LENGTHS.size + 2 * _CHECKSUM.size
_UTF8_CONTINUATION = re.compile(rb"[\x80-\xbf]")


def encode_message(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Frame one message. Raises `ValueError` if it exceeds one of the format's limits."""
    head = b"".join([_encode_header(name, value) for name, value in headers.items()])
    if len(head) > MAX_HEADERS_LENGTH:
        raise ValueError(f"headers must have at most {MAX_HEADERS_LENGTH} bytes, got {len(head)}")
    if len(payload) > MAX_PAYLOAD_LENGTH:
        raise ValueError(f"the payload must have at most {MAX_PAYLOAD_LENGTH} bytes, got {len(payload)}")
    lengths = _LENGTHS.pack(_FRAME_LENGTH + len(head) + len(payload), len(head))
    message = lengths + _CHECKSUM.pack(zlib.crc32(lengths)) + head + payload
    return message + _CHECKSUM.pack(zlib.crc32(message))


def payload_part(data: bytes) -> bytes:
    """Frame the container's unchanged bytes as a `PayloadPart`. Raises `ValueError` above `MAX_PAYLOAD_LENGTH`."""
    headers = {
        ":event-type": "PayloadPart",
        ":content-type": "application/octet-stream",
        ":message-type": "event",
    }
    return encode_message(headers, data)


def model_stream_error(code: str, message: str) -> bytes:
    """Frame a `ModelStreamError`, which ends the stream. `code` is StreamBroken or ModelInvocationTimeExceeded."""
    headers = {
        ":exception-type": "ModelStreamError",
        ":content-type": "application/json",
        ":message-type": "exception",
    }
    return encode_message(headers, json.dumps({"Message": message, "ErrorCode": code}).encode())


def internal_stream_failure(message: str) -> bytes:
    """Frame an `InternalStreamFailure`, which ends the stream."""
    headers = {
        ":exception-type": "InternalStreamFailure",
        ":content-type": "application/json",
        ":message-type": "exception",
    }
    return encode_message(headers, json.dumps({"Message": message}).encode())


def split_parts(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Cut a stream at awkward places, as AWS may do. The bytes stay the same, and the same chunks get the same cuts.

    Every other chunk is merged with the next one. Parts end inside a multi-byte character if there is one, else inside
    a record; the rest comes with a later part. Some parts are a single byte, as is the last. At most about three chunks
    are held back. If `chunks` raises, they are yielded first.
    """
    held = b""
    try:
        for position, chunk in enumerate(chunks):
            held += chunk
            if position % 2 and len(held) > 2:
                cut = _hostile_cut(held)
                yield held[:1]
                yield held[1:cut]
                held = held[cut:]
    except Exception:
        if held:
            yield held
        raise
    cuts = {0, min(1, len(held)), _hostile_cut(held), max(0, len(held) - 1), len(held)}
    for start, end in itertools.pairwise(sorted(cuts)):
        yield held[start:end]


def _hostile_cut(data: bytes) -> int:
    """Return an offset inside a multi-byte character, else inside a record. It is at least 2 if `data` is that long."""
    middle = max(2, len(data) // 2)
    inside = _UTF8_CONTINUATION.search(data, middle) or _UTF8_CONTINUATION.search(data, 2)
    if inside is not None:
        return inside.start()
    ends_record = data[middle - 1 : middle] == b"\n"
    return min(middle + ends_record, len(data))


def _encode_header(name: str, value: str) -> bytes:
    name_bytes, value_bytes = name.encode(), value.encode()
    if not 0 < len(name_bytes) < 1 << 8:
        raise ValueError(f"a header name must have 1 to 255 bytes, got {len(name_bytes)}")
    if len(value_bytes) >= 1 << 15:
        raise ValueError(f"a header value must have at most {(1 << 15) - 1} bytes, got {len(value_bytes)}")
    return bytes([len(name_bytes)]) + name_bytes + _VALUE_HEAD.pack(_STRING, len(value_bytes)) + value_bytes
