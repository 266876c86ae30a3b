"""Which names of files from outside are safe, and which files a model needs."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.model_files.names import check_names
from lmi_handlers.model_files.needed import needed

PARTS = st.sampled_from(
    ["a", "b.json", "..", ".", "", " ", "a\0b", "C:", "\\", "~", "é", "\u202e", "\ud800", "a" * 256]
)
NAMES = st.lists(PARTS | st.text(max_size=4), min_size=1, max_size=4).map("/".join) | st.text(max_size=20)


@given(st.lists(NAMES, max_size=4))
def test_accepted_names_can_be_written_below_any_folder(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    try:
        check_names(names, "s3://b/m")
    except ConfigError as error:
        message = str(error)
        assert message.startswith("s3://b/m holds ")
        assert message.isprintable()
        return
    folder = tmp_path_factory.mktemp("names")
    for name in names:
        path = folder / name
        assert Path(*path.resolve().parts[: len(folder.parts)]) == folder.resolve()
        assert "\\" not in name
        assert PurePosixPath(name).as_posix() == name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


@pytest.mark.parametrize(
    ("names", "left_out"),
    [
        (["config.json", "model.safetensors", "chat_template.jinja", "modeling.py", "merges.txt"], []),
        (["model.safetensors", "pytorch_model.bin", "m.gguf", "tf_model.h5", "model.onnx"], [1, 2, 3, 4]),
        (["pytorch_model.bin", "m.gguf"], [1]),
        (["m.gguf", "README.md"], []),
        (["model.safetensors", "adapters/a/adapter_model.bin", "original/params.json", ".git/config"], [2, 3]),
        (["openvino_model.xml", "openvino_model.bin", "model.safetensors", "pytorch_model.bin"], [3]),
    ],
)
def test_files_that_a_model_needs(names: list[str], left_out: list[int]) -> None:
    assert needed(names) == [name for number, name in enumerate(names) if number not in left_out]
