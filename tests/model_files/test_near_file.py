"""Which file was meant by a name that does not exist."""

from __future__ import annotations

from pathlib import Path

import pytest
from facts import says

from lmi_handlers.core.near_file import did_you_mean, near_file


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("models/llama.guf", "models/llama.gguf"),
        ("modles/lama.gguf", "models/llama.gguf"),
        ("models/Llama.GGUF", "models/llama.gguf"),
        ("modles", "models"),
        ("models/other.bin", ""),
        ("elsewhere/llama.gguf", ""),
        ("models/llama.gguf", ""),  # it exists
        ("models/llama.gguf/config.json", ""),  # a file has no files
    ],
)
def test_near_file(tmp_path: Path, wrong: str, meant: str) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "llama.gguf").write_text("")
    assert near_file(tmp_path / wrong) == (str(tmp_path / meant) if meant else "")


def test_the_first_path_with_a_near_one_is_proposed(tmp_path: Path) -> None:
    (tmp_path / "template.jinja").write_text("")
    paths = (tmp_path / "nothing", tmp_path / "templat.jinja")
    assert says(did_you_mean(*paths), f"{tmp_path}/template.jinja")
    assert did_you_mean(paths[0]) == ""
