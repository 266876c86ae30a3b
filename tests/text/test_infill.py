"""Models of code that fill in the middle of a text: their tokens."""

from __future__ import annotations

import pytest

from lmi_handlers.text.infill import FORMATS, InfillFormat, find_infill


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.prefix)
def test_a_format_is_found_by_its_tokens(form: InfillFormat) -> None:
    tokens = {"<s>", form.prefix, form.suffix, form.middle, form.ends[0]}
    found = find_infill(tokens)
    assert found is not None
    assert (found.prompt("a", "b"), found.ends) == (f"{form.prefix}a{form.suffix}b{form.middle}", form.ends[:1])
    for token in (form.prefix, form.suffix, form.middle):
        assert find_infill(tokens - {token}) is None


def test_formats_share_no_token() -> None:
    marks = [token for form in FORMATS for token in (form.prefix, form.suffix, form.middle)]
    assert len(set(marks)) == len(marks) == 3 * len(FORMATS)
