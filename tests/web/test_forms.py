"""Forms: their parts, and limits on what is parsed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from facts import raises

from lmi_handlers.core.errors import PayloadTooLarge
from lmi_handlers.web.forms import FORM_TYPES, MAX_FIELDS, form_parts

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


@pytest.mark.parametrize("before", [b"", b"preamble", b"-"])
@pytest.mark.parametrize("headers", [b"\r\na:b" * 10_000, b"\na" * 10_000, b";" * 100_000])
def test_headers_of_a_field_are_limited(before: bytes, headers: bytes) -> None:
    assert parts(before, FIELD % (b"\r\nb: c" * 99, b"1"), END) == [("a", b"1")]
    with raises(PayloadTooLarge, "4096 bytes headers", code="too_many_values"):
        parts(before, FIELD % (headers, b"1"), END)
