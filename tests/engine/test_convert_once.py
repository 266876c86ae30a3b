"""What is converted, or refused, is not converted again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from facts import raises

from lmi_handlers.core.convert_once import convert_once
from lmi_handlers.core.errors import ConversionRefused, LMIError, LoadFailed, UnsupportedModel


class Converter:
    """Counts its conversions, all of which fail with `error`, if that is set."""

    def __init__(self, error: LMIError | None = None) -> None:
        self.error = error
        self.calls = 0

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error
        (folder / "model").touch()


def convert(folder: Path, function: Callable[[Path], None], converter: str = "tool 1") -> Path:
    return convert_once(folder, function, lambda phase: None, converter=converter)


def test_folder_is_converted_once(tmp_path: Path) -> None:
    function = Converter()
    for _ in range(2):
        assert [file.name for file in convert(tmp_path / "a", function).iterdir()] == ["model"]
    assert function.calls == 1


def test_refusal_is_remembered_until_the_converter_changes(tmp_path: Path) -> None:
    function = Converter(ConversionRefused("its attention has sinks"))
    with pytest.raises(ConversionRefused, match=r"^its attention has sinks$"):
        convert(tmp_path / "a", function)
    with raises(ConversionRefused, "sinks earlier a.refused"):
        convert(tmp_path / "a", function)
    assert function.calls == 1
    with pytest.raises(ConversionRefused, match=r"sinks$"):
        convert(tmp_path / "b", function)  # another model, or another version of the engine
    with pytest.raises(ConversionRefused, match=r"sinks$"):
        convert(tmp_path / "a", function, "tool 2")
    assert function.calls == 3
    function.error = None
    assert convert(tmp_path / "a", function, "tool 3") == tmp_path / "a"
    assert convert(tmp_path / "a", function, "tool 2") == tmp_path / "a"


def test_damaged_refusal_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "a.refused").write_text('["tool 1", "its att')
    assert convert(tmp_path / "a", Converter()) == tmp_path / "a"


@pytest.mark.parametrize("error", [LoadFailed("killed"), UnsupportedModel("a library is missing")])
def test_other_failures_are_not_remembered(error: LMIError, tmp_path: Path) -> None:
    function = Converter(error)
    for _ in range(2):
        with pytest.raises(type(error)):
            convert(tmp_path / "a", function)
    assert function.calls == 2
    assert not [file for file in tmp_path.iterdir() if file.suffix != ".lock"]
