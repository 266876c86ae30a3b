"""`Input` and `Output`, as handlers use them, without a server."""

from __future__ import annotations

import io
import json
import tracemalloc
import zipfile
from typing import Any

import numpy as np
import pytest
from facts import raises

from lmi_handlers.custom_code import ndlist
from lmi_handlers.custom_code.content import ContentError
from lmi_handlers.custom_code.encode_decode import decode, encode
from lmi_handlers.custom_code.inputs import Input
from lmi_handlers.custom_code.outputs import Output
from lmi_handlers.custom_code.predictive.features import read_features


def test_json_is_written_as_djl_writes_it() -> None:
    output = Output().add_as_json({"text": "é", "numbers": np.array([1, 2]), "half": np.float32(0.5)})
    assert output.data().decode() == '{\n  "text":"é",\n  "numbers":[\n    1,\n    2\n  ],\n  "half":0.5\n}'


def test_an_error_is_written_as_djl_writes_it() -> None:
    output = Output().error("no")
    assert (output.code, output.properties) == (424, {"Content-Type": "application/json"})
    assert output.data() == b'{\n  "code":424,\n  "message":"invoke handler failure",\n  "error":"no"\n}'


@pytest.mark.parametrize(
    ("value", "data"), [("é", "é".encode()), (b"\xff", b"\xff"), (bytearray(b"x"), b"x"), ([1], b"[\n  1\n]")]
)
def test_values_become_bytes(value: object, data: bytes) -> None:
    assert Output().add(value).data() == data


def test_the_content_named_data_is_sent_before_others() -> None:
    assert Output().add("first", key="a").add("second", key="data").data() == b"second"
    assert Output().add("first", key="a").add("second", key="b").data() == b"first"


@pytest.mark.parametrize(
    ("item", "data"),
    [
        ("é", b'{"outputs": "\\u00e9"}\n'),
        (b"x", b"x"),
        (["é"], b'{"outputs": ["\\u00e9"]}\n'),
        ({"a": np.int64(1)}, b'{"outputs": {"a": 1}}\n'),
    ],
)
def test_items_of_a_stream_without_formatter(item: object, data: bytes) -> None:
    assert Output().format(item) == data


def test_properties_are_found_in_any_case() -> None:
    given = Input({"Content-Type": "text/plain"}, [("data", b"x")])
    assert given.get_property("content-type") == given.get_property("CONTENT-TYPE") == "text/plain"
    properties = given.get_properties()
    assert properties["content-type"] == properties.get("cOntent-type") == "text/plain"
    assert "content-type" in properties
    assert "accept" not in properties
    assert properties.get("accept", "none") == "none"
    assert given.get_property("accept") is None


def test_content_by_name() -> None:
    given = Input({}, [("first", b'{"a": 1}'), ("data", b"main"), ("empty", b"")])
    assert given.get_as_string() == "main"
    assert given.get_as_json("first") == {"a": 1}
    assert given.contains_key("first")
    assert given.contains_key("empty")  # as in DJL, where only None is no content
    with pytest.raises(KeyError, match="other"):
        given.get_as_bytes("other")
    assert Input({}, [("first", b"x")]).get_as_bytes() == b"x"


def test_an_input_without_content_is_empty() -> None:
    empty = Input({"a": "b"})
    assert empty.is_empty()
    assert empty.get_as_bytes() is None
    with pytest.raises(ValueError, match="no content"):
        empty.get_as_json()


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        ("application/json", b"[1]", [1]),
        ("text/plain", b"x", "x"),
        ("audio/wav", b"\xff", b"\xff"),
    ],
)
def test_data_as_its_type_suggests(kind: str, data: bytes, value: object) -> None:
    assert Input({"Content-Type": kind}, [("data", data)]).get_data() == value


def test_a_batch() -> None:
    parts = [Input({"X-A": str(number)}, [("data", str(number).encode())]) for number in range(2)]
    batch = Input.of_batch(parts)
    assert (batch.is_batch(), batch.get_batch_size(), batch.is_empty()) == (True, 2, False)
    assert [item.get_as_json() for item in batch.get_batches()] == [0, 1]
    assert batch.get_property("batch_001_x-a") == "1"
    assert not parts[0].is_batch()
    assert parts[0].get_batches() == [parts[0]]


@pytest.mark.parametrize("kind", ["float32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_arrays_survive_both_formats(kind: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(kind)
    for encoded in (ndlist.encode([array, array]), ndlist.encode_npz([array, array])):
        for decoded in ndlist.decode(encoded):
            assert decoded.dtype == array.dtype
            np.testing.assert_array_equal(decoded, array)


def test_an_ndlist_has_djls_bytes() -> None:
    head = b"\0\0\0\1" + b"\0\4NDAR" + b"\0\0\0\3" + b"\0" + b"\0\7default" + b"\0\7FLOAT32"
    shape = b"\0\0\0\1" + b"\0\0\0\0\0\0\0\1" + b"\0\0\0\1" + b"\0?"
    assert ndlist.encode(np.array([1.0], np.float32)) == head + shape + b"<" + b"\0\0\0\4" + b"\0\0\x80\x3f"


def npy_header(kind: str, length: int) -> bytes:
    file = io.BytesIO()
    npy: Any = np.lib.format
    npy.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": (length,)})
    return file.getvalue()


@pytest.mark.parametrize("data", [b"", b"{}", b"\0\0\0\1\0\4NDAR", b"\0\0\0\1\0\4XXXX\0\0\0\3"])
def test_what_is_no_ndlist_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not an NDList"):
        ndlist.decode(data)


def test_pickled_arrays_are_not_loaded() -> None:
    archive = ndlist.encode_npz([np.array([{"a": 1}], dtype=object)])
    with pytest.raises(ValueError, match="allow_pickle"):
        ndlist.decode(archive)


def zipped(compression: int, size: int, claimed: int) -> bytes:
    """An archive of zeros whose directory claims another size."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("a.npy", bytes(size))
        archive.infolist()[0].file_size = claimed
    return file.getvalue()


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("application/x-npy", zipped(zipfile.ZIP_DEFLATED, 1000, 1 << 29), "268435456 bytes"),
        ("application/x-npy", zipped(zipfile.ZIP_BZIP2, 1000, 1000), "stored compressed deflate"),
        ("tensor/npz", zipped(zipfile.ZIP_DEFLATED, 1 << 22, 1000), "not valid tensor/npz"),
        ("tensor/npz", b"PK\3\4xxxx", "File zip file"),
        ("tensor/npz", ndlist.encode_npz([np.ones(9)]).replace(b"\xf0?", b"\xf0@"), "Bad CRC-32"),
        ("application/x-npy", npy_header("|S0", 10**9), "needs more bytes"),
        ("tensor/ndlist", npy_header("<f8", 10**9), "needs more bytes"),
    ],
)
def test_files_of_numpy_take_no_more_memory_than_they_have(kind: str, body: bytes, words: str) -> None:
    tracemalloc.start()
    with raises(ContentError, words) as caught:
        read_features(body, kind)
    assert caught.value.status_code == 400
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_decode_and_encode_by_content_type() -> None:
    assert decode(Input({}, [("data", b'{"inputs": "a"}')]), "application/json") == {"inputs": "a"}
    assert decode(Input({}, [("data", b"inputs,x\na,1\nb,2\n")]), "text/csv") == {"inputs": ["a", "b"]}
    assert decode(Input({}, [("data", b"hi")]), "text/plain; charset=utf-8") == {"inputs": ["hi"]}
    assert decode(Input(), None) == {"inputs": ""}
    with pytest.raises(ValueError, match="first line"):
        decode(Input({}, [("data", b"a,b\n1,2\n")]), "text/csv")
    output = Output()
    encode(output, [{"a": 1, "b": 2}], "text/csv")
    assert (output.properties, output.data()) == ({"Content-Type": "text/csv"}, b"a,b\r\n1,2\r\n")
    output = Output()
    encode(output, [{"a": 1}], "application/json")
    assert json.loads(output.data()) == [{"a": 1}]
