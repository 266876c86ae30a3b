"""The grammar of serving.properties."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import javaproperties
import msgspec
import pytest
from facts import raises, says, tell
from hypothesis import given
from hypothesis import strategies as st
from serving_properties import load

from backends import declaration, registry
from lmi_handlers.config.no_effect import NO_EFFECT
from lmi_handlers.config.properties import MAX_FILE, MAX_NAMES, ServingProperties, load_properties, read_properties
from lmi_handlers.config.report import render_settings
from lmi_handlers.core.errors import ConfigError

OPTIONS = registry().options
KEYS = registry().keys
TRANSFORMERS = declaration("transformers")


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("a=1\nb:2\nc 3\n", {"a": "1", "b": "2", "c": "3"}),
        ("# comment\n  ! comment\n\na = 1", {"a": "1"}),
        ("a=one,\\\n    two\n", {"a": "one,two"}),
        ("a=one\\\r\n  two\r\nb=3\r\n", {"a": "onetwo", "b": "3"}),
        ("a=\\u00e9\\u4e2d\\ud83d\\ude00\\t.\\n", {"a": "é中😀\t.\n"}),
        ("a=é中😀", {"a": "é中😀"}),
        ("a\\ b\\:c\\=d=1", {"a b:c=d": "1"}),
        ("a=1\na=2\n", {"a": "2"}),
        ("a", {"a": ""}),
        ("a=b=c#d", {"a": "b=c#d"}),
        ("\ufeffa=1", {"a": "1"}),
        ("", {}),
    ],
)
def test_grammar(tmp_path: Path, text: str, properties: dict[str, str]) -> None:
    path = tmp_path / "serving.properties"
    path.write_bytes(text.encode())
    assert read_properties(path) == properties


@given(text=st.text("ab=: \t\f\\#!\n\ru", max_size=30))
def test_lines_that_are_continued_are_read_as_by_javaproperties(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "continued.properties"
    path.write_bytes(text.encode())
    try:
        expected = javaproperties.loads(text)
    except javaproperties.InvalidUEscapeError:
        with raises(ConfigError, "continued.properties properties file"):
            read_properties(path)
        return
    assert read_properties(path) == expected


def test_a_long_file_is_read_in_no_time(tmp_path: Path) -> None:
    """javaproperties itself would need hours: it looks at a line from its beginning each time that it is continued."""
    path = tmp_path / "serving.properties"
    path.write_text("a=" + "b\\\n" * 340_000)
    assert read_properties(path) == {"a": "b" * 340_000}
    path.write_text("a" * (MAX_FILE + 1))
    with raises(ConfigError, f"{path} {MAX_FILE} bytes"):
        read_properties(path)


def test_a_file_has_not_more_options_than_can_be_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "serving.properties"
    path.write_text("".join(f"option.a{number}\n" for number in range(MAX_NAMES + 1)))
    with raises(ConfigError, f"{path} {MAX_NAMES + 1} {MAX_NAMES}"):
        read_properties(path)


def test_a_named_pipe_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "serving.properties"
    os.mkfifo(path)
    with raises(ConfigError, f"{path} not file"):
        read_properties(path)


texts = st.text(st.characters(exclude_categories=["Cs"]))


@given(properties=st.dictionaries(texts, texts))
def test_files_written_by_java_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, properties: dict[str, str]
) -> None:
    path = tmp_path_factory.getbasetemp() / "written.properties"
    for ensure_ascii in (True, False):
        path.write_bytes(javaproperties.dumps(properties, timestamp=False, ensure_ascii=ensure_ascii).encode())
        assert read_properties(path) == properties


@given(properties=st.dictionaries(st.sampled_from([*KEYS, *NO_EFFECT, "option.new", "new"]), texts))
def test_any_values_are_loaded_or_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, properties: dict[str, str]
) -> None:
    directory = tmp_path_factory.getbasetemp()
    (directory / "serving.properties").write_bytes(javaproperties.dumps(properties).encode())
    with contextlib.suppress(ConfigError):
        loaded = load_properties(directory, {}, registry())
        record = msgspec.json.encode(loaded.properties)
        assert msgspec.json.decode(record, type=ServingProperties) == loaded.properties
        assert render_settings(loaded, TRANSFORMERS, show_all=True)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"a=\xff", "UTF-8 0xff 2"),
        (b"a=\\u12", "\\u escape"),
    ],
)
def test_error_names_the_invalid_file(model_dir: Path, content: bytes, cause: str) -> None:
    path = model_dir / "serving.properties"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_properties(model_dir, {}, registry())
    assert str(path) in str(caught.value)
    assert says(caught.value, cause)


def test_text_that_is_not_unicode_is_an_error(model_dir: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(model_dir, "option.model_id=\\ud83d", OPTION_REVISION="\udcff")
    assert tell(
        str(caught.value).splitlines(),
        ["option.model_id Unicode serving.properties", "option.revision Unicode OPTION_REVISION"],
    )


def test_error_names_the_unreadable_file(model_dir: Path) -> None:
    (model_dir / "serving.properties").mkdir()
    with raises(ConfigError, "serving.properties read directory"):
        load_properties(model_dir, {}, registry())


def test_missing_model_directory_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none does not exist"):
        load_properties(tmp_path / "none", {}, registry())


def test_defaults_without_file_and_environment(model_dir: Path) -> None:
    for loaded in (
        load_properties(None, {}, registry()),
        load_properties(model_dir, {"PATH": "/bin", "HF_TOKEN": "hf_abc"}, registry()),
    ):
        assert loaded.explicit == ()
        assert loaded.warnings(TRANSFORMERS) == ()
        assert not loaded.unknown
        assert [item.key for item in loaded.defaults] == [declared.key for declared in OPTIONS.values()]
        assert "hf_abc" not in repr(loaded)
    assert load_properties(None, {}, registry()).properties == ServingProperties()


def test_keys_and_values_are_stripped_and_empty_ones_ignored(model_dir: Path) -> None:
    loaded = load(model_dir, "\\ option.dtype\\ =fp16  \noption.revision=\noption.task=\\ \n", OPTION_QUANTIZE="")
    assert loaded.properties.dtype == "fp16"
    assert loaded.properties.revision is None
    assert [item.key for item in loaded.explicit] == ["option.dtype"]
