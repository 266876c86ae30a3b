"""Switches and numbers in environment variables: one reader, which refuses what it does not know."""

from __future__ import annotations

from pathlib import Path

import pytest
from lmi_command import lmi

from lmi_handlers.config.environment import integer, seconds, switch
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.preflight.checks import mistakes
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


@pytest.mark.parametrize("text", ["true", "TRUE", " True "])
def test_on(text: str) -> None:
    assert switch({"A": text}, "A")


@pytest.mark.parametrize("environ", [{}, {"A": ""}, {"A": "false"}, {"A": "FALSE "}])
def test_off(environ: dict[str, str]) -> None:
    assert not switch(environ, "A")


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

    with pytest.raises(ConfigError, match=f"^{name} must be true or false, got '") as raised:
        start()
    assert len(str(raised.value)) < 500
    assert "\x1b" not in str(raised.value)


@pytest.mark.parametrize("text", ["0", "11", "-1", "1.0", "", "x", "१", "9" * 5000])
def test_integers(text: str) -> None:
    assert integer("A", "10", 10) == 10
    with pytest.raises(ConfigError, match=r"^A has value .*: must be an integer from 1 to 10$"):
        integer("A", text, 10)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e3", "1 s"])
def test_seconds(text: str) -> None:
    assert (seconds({"A": "0.5"}, "A", 1.0), seconds({}, "A", 1.0)) == (0.5, 1.0)
    with pytest.raises(ConfigError, match=r"^A must be a number above 0, got "):
        seconds({"A": text}, "A", 1.0)


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
    with pytest.raises(ConfigError, match=r"^--model-dir \(LMI_MODEL_DIR\) .* is one model"):
        read_store({"SAGEMAKER_MULTI_MODEL": "true", "LMI_MODEL_DIR": str(tmp_path)})
