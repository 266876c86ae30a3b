"""The formats of weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmi_handlers.model_files.locate import has_model_files
from lmi_handlers.model_files.needed import ALL_WEIGHTS, UNUSED, is_weights, needed


@pytest.mark.parametrize("pattern", ALL_WEIGHTS)
def test_weights_of_any_format_keep_the_default_model_away(tmp_path: Path, pattern: str) -> None:
    assert not has_model_files(tmp_path)
    (tmp_path / pattern.replace("*", "a")).touch()
    assert has_model_files(tmp_path)


def test_engines_read_none_of_what_is_not_downloaded() -> None:
    names = [pattern.replace("*", "a") for pattern in UNUSED]
    assert needed(names) == []
    assert not any(map(is_weights, names))
