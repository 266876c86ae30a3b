"""Switches and numbers in environment variables: one reader, which refuses what it does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from facts import raises, says, tell
from lmi_command import lmi

from backends.options_page import SETTINGS
from lmi_handlers.config.environment import DeclaredVariable, Variable, all_variables, read_values
from lmi_handlers.core import redaction
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.preflight.checks import mistakes, warnings
from lmi_handlers.preflight.configuration import read_configuration, read_store

SWITCHES = (
    "SAGEMAKER_SECURE_MODE",
    "SAGEMAKER_MULTI_MODEL",
    "LMI_LOCAL_RUNTIME",
    "LMI_SPLIT_PAYLOAD_PARTS",
    "LMI_RELOAD",
    "LMI_EMF",
    "OTEL_SDK_DISABLED",
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    on: Annotated[bool, Variable("A", "A switch.")] = False
    number: Annotated[Annotated[int, msgspec.Meta(ge=1, le=10)], Variable("B", "A number.", aliases=("OLD_B",))] = 5
    period: Annotated[Annotated[float, msgspec.Meta(gt=0, le=100)], Variable("C", "Seconds.")] = 1.0
    text: Annotated[str | None, Variable("D", "Any text.")] = None
    path: Annotated[Path | None, Variable("E", "A path.", read=Path)] = None
    derived: str = ""


def read(**environ: str) -> Settings:
    return Settings(**read_values(Settings, environ))


@pytest.mark.parametrize("text", ["true", "TRUE", " True "])
def test_on(text: str) -> None:
    assert read(A=text).on


@pytest.mark.parametrize("environ", [{}, {"A": ""}, {"A": " "}, {"A": "false"}, {"A": "FALSE "}])
def test_off(environ: dict[str, str]) -> None:
    assert not read(**environ).on


def test_a_variable_that_is_empty_counts_as_not_set() -> None:
    assert read(A="", B="", C=" ", D="", E="") == read() == Settings()


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        read(A="yes", B="seven", C="c")
    assert [line.split(" ")[0] for line in str(raised.value).splitlines()] == ["A", "B", "C"]


def test_the_first_of_several_names_takes_precedence() -> None:
    assert read(OLD_B=" 7 ").number == 7
    assert read(OLD_B="7", B="8").number == 8
    assert read(OLD_B="seven", B="8").number == 8
    with raises(ConfigError, "OLD_B seven integer 1 10"):
        read(OLD_B="seven")


def test_texts_and_paths_are_taken_as_they_are() -> None:
    assert (read(D=" a ").text, read(E="a b ").path) == (" a ", Path("a b "))


def test_errors_show_no_credentials_and_no_long_values(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^B has value 'https://\*{6}@host': "):
        read(B="https://user:pass@host")
    monkeypatch.setattr(redaction, "_configured", lambda: redaction.key_patterns({"LMI_REDACTED_KEYS": "B"}))
    with pytest.raises(ConfigError, match=r"^B has value '\*{6}': "):
        read(B="x")


@pytest.mark.parametrize("text", ["1", "yes", "on", "0", "no", "ture", "true,", "\x1b]52;c;eA==\x07" * 100])
@pytest.mark.parametrize("name", SWITCHES)
def test_any_other_word_ends_the_start(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "serving.properties").write_text("option.rolling_batch=echo\n")
    environ = {
        "LMI_MODEL_DIR": str(tmp_path),
        "LMI_LOCAL_RUNTIME": "true",
        "SAGEMAKER_SECURITY_CONTROLS": "",
        name: text,
    }

    def start() -> None:
        read_store(environ)
        for mistake in mistakes(read_configuration(environ), environ):
            raise ConfigError(mistake)

    with raises(ConfigError, f"{name} true false") as raised:
        start()
    assert len(str(raised.value)) < 500
    assert "\x1b" not in str(raised.value)


@pytest.mark.parametrize("text", ["0", "11", "-1", "1.0", "x", "१", "9" * 5000])
def test_integers(text: str) -> None:
    assert read(B="10").number == 10
    with raises(ConfigError, "B integer 1 10") as raised:
        read(B=text)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e3", "1 s"])
def test_numbers(text: str) -> None:
    assert (read(C="0.5").period, read(C=" .5 ").period) == (0.5, 0.5)
    with raises(ConfigError, "C number 0 100"):
        read(C=text)


DECLARED = [item for struct in SETTINGS for item in all_variables(struct)]


def test_all_switches_are_declared() -> None:
    assert {item.variable.name for item in DECLARED if bool in item.types} == set(SWITCHES)


@pytest.mark.parametrize("declared", DECLARED, ids=lambda item: item.variable.name)
def test_declaration(declared: DeclaredVariable) -> None:
    """The default is a valid value, and each variable sets one field."""
    if declared.default_text:
        assert declared.parse(declared.default_text) == declared.default
    assert declared.variable.help.endswith(".")
    for name in declared.variable.names:
        assert [item for item in DECLARED if name in item.variable.names] == [declared]


def test_a_store_of_sagemaker_is_checked(tmp_path: Path) -> None:
    for name, properties in {"good": "option.rolling_batch=echo\n", "bad": "option.rolling_batch=nothing\n"}.items():
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "serving.properties").write_text(properties)
    environ = {"SAGEMAKER_MULTI_MODEL": "true", "LMI_MODEL_STORE": str(tmp_path / "models")}
    ended = lmi("check", env=environ)
    assert ended.exit_code == 1
    assert "holds 2" in ended.output
    assert "Model good on backend echo" in ended.output
    assert "Model bad" not in ended.output


def test_one_model_and_a_store_of_sagemaker_contradict_each_other(tmp_path: Path) -> None:
    with raises(ConfigError, "--model-dir LMI_MODEL_DIR model"):
        read_store({"SAGEMAKER_MULTI_MODEL": "true", "LMI_MODEL_DIR": str(tmp_path)})


@pytest.mark.parametrize("task", ["text-embedding", "text-ranking"])
def test_pooling_has_no_file_of_shared_prefixes(tmp_path: Path, task: str) -> None:
    environ = {"LMI_MODEL_DIR": str(tmp_path), "OPTION_ROLLING_BATCH": "echo", "OPTION_TASK": task}
    assert not list(mistakes(read_configuration(environ), environ))
    environ["OPTION_PREFIX_CACHE_FILE"] = str(tmp_path / "prefixes")
    [mistake] = mistakes(read_configuration(environ), environ)
    assert says(mistake, f"option.prefix_cache_file option.task={task}")


@pytest.mark.parametrize(
    ("name", "meant"), [("serving.properties.txt", True), ("Serving.property", True), ("config.properties", False)]
)
def test_file_with_nearly_the_right_name_causes_a_warning(tmp_path: Path, name: str, *, meant: bool) -> None:
    """Without it, the default model is served, and the options say nothing."""
    (tmp_path / name).write_text("option.max_model_len=64\n")
    environ = {"LMI_MODEL_DIR": str(tmp_path), "OPTION_ROLLING_BATCH": "echo"}
    assert [says(each, f"serving.properties {tmp_path / name}") for each in warnings(read_configuration(environ))] == (
        [True] if meant else []
    )
    (tmp_path / "serving.properties").write_text("")
    assert not list(warnings(read_configuration(environ)))


@pytest.mark.parametrize("mode", [0o700, 0o775, 0o777])
def test_warning_for_a_named_folder_that_every_user_can_write_to(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(mode)
    monkeypatch.setenv("LMI_CACHE_DIR", str(folder))
    environ = {"OPTION_ROLLING_BATCH": "echo", "SAGEMAKER_SESSIONS_PATH": str(folder)}
    found = list(warnings(read_configuration(environ)))
    expected = (
        [f"option.sessions_path {folder} 777 chmod", f"LMI_CACHE_DIR {folder} 777 chmod"] if mode == 0o777 else []
    )
    assert tell(found, expected), found
