"""Forms: their parts, and limits on what is parsed."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import pytest
import requests
from facts import raises
from hypothesis import given
from hypothesis import strategies as st
from neighbours import Neighbours
from serving import StartServer
from werkzeug.formparser import FormDataParser

from lmi_handlers.core.errors import PayloadTooLarge
from lmi_handlers.web.forms import FORM_TYPES, MAX_FIELDS, MAX_HEADERS, form_parts

MULTIPART, URL_ENCODED = FORM_TYPES
FIELD = b'--x\r\nContent-Disposition: form-data; name="a"%b\r\n\r\n%b\r\n'
END = b"--x--\r\n"


def parts(*fields: bytes, mimetype: str = MULTIPART) -> list[tuple[str, bytes]]:
    return form_parts(b"".join(fields), mimetype, {"boundary": "x"})


def test_a_large_file_is_not_written_to_a_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    file = bytes(1 << 20)
    assert parts(FIELD % (b'; filename="f"', file), FIELD % (b"", b"1"), END) == [("a", b"1"), ("a", file)]


def test_what_is_after_the_last_field_is_not_read() -> None:
    assert parts(FIELD % (b"", b"1"), END, bytes(10_000)) == [("a", b"1")]


def test_a_file_may_have_what_looks_like_a_boundary() -> None:
    file = b"--xyz" * 5000
    assert parts(FIELD % (b'; filename="f"', file), END) == [("a", file)]


def test_forms_without_parts() -> None:
    cases: list[dict[str, str]] = [{}, {"boundary": ""}, {"boundary": "\xe4"}, {"boundary": "y"}]
    for options in cases:
        assert form_parts(FIELD % (b"", b"1") + END, MULTIPART, options) == []


def test_fields_are_counted() -> None:
    assert len(parts(*[FIELD % (b"", b"1")] * MAX_FIELDS, END)) == MAX_FIELDS
    for count in (MAX_FIELDS + 1, 10_000):
        with raises(PayloadTooLarge, f"{MAX_FIELDS} fields", code="too_many_values"):
            parts(*[FIELD % (b"", b"1")] * count, END)
    with raises(PayloadTooLarge, f"{MAX_FIELDS} fields", code="too_many_values"):
        parts(b"a=1&" * 10_000, mimetype=URL_ENCODED)


@pytest.mark.parametrize("before", [b"", b"preamble", b"-", pytest.param(bytes((1 << 18) - 6), id="long")])
@pytest.mark.parametrize("headers", [b"\r\na:b" * 10_000, b"\na" * 10_000, b";" * 100_000])
def test_headers_of_a_field_are_limited(before: bytes, headers: bytes) -> None:
    assert parts(before, FIELD % (b"\r\nb: c" * 99, b"1"), END) == [("a", b"1")]
    with raises(PayloadTooLarge, "4096 bytes headers", code="too_many_values"):
        parts(before, FIELD % (headers, b"1"), END)


def test_blanks_after_a_boundary_hide_no_headers() -> None:
    field = FIELD.replace(b"--x", b"--x" + b" " * MAX_HEADERS) % (b"\na" * 10_000, b"1")
    with raises(PayloadTooLarge, f"{MAX_HEADERS} bytes headers", code="too_many_values"):
        parts(field, END)
    assert parts(FIELD.replace(b"--x", b"--x \t") % (b"", b"1"), END) == [("a", b"1")]


_TEXTS = st.sampled_from(
    ["a", "=", "&", "+", ";", "%", "%4", "%41", "%2B", "%26", "%zz", "%c3%a9", "%C3", "%FF", "\xe9"]
)


@given(st.lists(_TEXTS), st.integers(8185, 8195))
def test_url_encoded_fields_are_those_that_werkzeug_reads(texts: list[str], before: int) -> None:
    for data in ("".join(texts).encode(), ("a=" + "b" * before + "".join(texts) + "%c3%a9").encode()):
        _, expected, _ = FormDataParser().parse(io.BytesIO(data), URL_ENCODED, len(data))
        assert parts(data, mimetype=URL_ENCODED) == [
            (name, value.encode()) for name, value in expected.items(multi=True)
        ]
    assert parts(b"a=1&b=\xff", mimetype=URL_ENCODED) == []


def test_large_forms_do_not_delay_other_clients(start_server: StartServer, tmp_path: Path) -> None:
    """Parsed in one go, each would block them for 3 to 4 seconds."""
    (tmp_path / "m0").mkdir()
    (tmp_path / "m0" / "model.py").write_text(
        "from djl_python.input_parser import input_formatter\n\n\n"
        "@input_formatter\n"
        "def read(decoded_payload: dict, tokenizer=None, **kwargs) -> dict:\n"
        "    return decoded_payload if 'stream' in decoded_payload else {'inputs': 'a form'}\n"
    )
    server = start_server("option.rolling_batch=echo\noption.echo_tokens_per_second=50\noption.web_workers=1\n")
    multipart = f'{MULTIPART}; boundary="x"'
    with Neighbours(server):
        for kind, data in (
            (URL_ENCODED, b"a=" + b"%41" * (8 << 20)),
            (multipart, bytes(48 << 20) + FIELD % (b"", b"1") + END),
        ):
            answer = requests.post(f"{server.url}/invocations", data, headers={"Content-Type": kind}, timeout=120)
            assert answer.text == '{"generated_text": "a form"}'
