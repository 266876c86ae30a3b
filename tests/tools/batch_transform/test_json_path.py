"""The filters of a transform job."""

from __future__ import annotations

from typing import Any

import pytest

from lmi_handlers.tools.batch_transform.json_path import JsonPath

RECORD = {"id": 7, "features": [1, 2, 3], "rows": [{"a": 1, "b": 2}, {"a": 3, "b": 4}], "x y": {"z": None}}


@pytest.mark.parametrize(
    ("path", "selected"),
    [
        ("$", RECORD),
        ("$.id", 7),
        ("$['id']", 7),
        ('$["x y"].z', None),
        ("$['id','features']", {"id": 7, "features": [1, 2, 3]}),
        ("$['id', 'missing']", {"id": 7}),
        ("$.['features']", [1, 2, 3]),
        ("$.features[0]", 1),
        ("$.features[-1]", 3),
        ("$.features[0,2]", [1, 3]),
        ("$.features[1:]", [2, 3]),
        ("$.features[:-1]", [1, 2]),
        ("$.features[ 0 : 1 ]", [1]),
        ("$.rows[*].a", [1, 3]),
        ("$.rows.*['a']", [1, 3]),
        ("$.rows[0:1].b", [2]),
        ("$.rows[*]['a','b']", RECORD["rows"]),
        ("$.rows[1].*", [3, 4]),
    ],
)
def test_parts_keep_their_form(path: str, selected: Any) -> None:
    assert JsonPath(path).select(RECORD) == selected


@pytest.mark.parametrize(
    "path", ["$.missing", "$.id.a", "$.features[3]", "$.id[0]", "$['a','b']", "$.id[1:]", "$.id.*"]
)
def test_what_is_not_there_is_an_error(path: str) -> None:
    with pytest.raises(LookupError):
        JsonPath(path).select(RECORD)


@pytest.mark.parametrize(
    "path",
    ["", "id", "$id", "$..id", "$.rows[?(@.a>1)]", "$.", "$[", "$['a]", "$[1:2:3]", "$.a b", "$" + ".a" * 32, "$[()]"],
)
def test_other_operators_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match=r"path|begin"):
        JsonPath(path)
