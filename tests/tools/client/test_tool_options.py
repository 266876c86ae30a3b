"""Options of the tools that would have no effect, or cannot be sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from lmi_command import lmi
from recordings import capture_record
from serving import free_port


@pytest.mark.parametrize(
    "arguments",
    [
        ("chat", "--url", "http://127.0.0.1:1", "--target-model", "m"),
        ("chat", "--component", "c"),
        ("chat", "--region", "eu-west-1"),
        ("invoke", "--url", "http://127.0.0.1:1", "--region", "eu-west-1", "{}"),
        ("replay", "--input", "day.jsonl", "--url", "http://127.0.0.1:1", "--region", "eu-west-1"),
    ],
)
def test_options_of_endpoints_need_one(arguments: tuple[str, ...]) -> None:
    result = lmi(*arguments)
    assert result.exit_code == 2
    assert "needs --endpoint" in result.output


@pytest.mark.parametrize("tool", ["bench", "chat", "conform", "explain", "invoke", "replay", "transform"])
def test_a_key_that_cannot_be_sent_is_told_but_not_shown(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one with the end of the line of its file."""
    monkeypatch.setenv("API_KEY", "secret\n")
    (tmp_path / "day.jsonl").write_bytes(capture_record(b"{}", b"{}", "application/json"))
    source, out = ["--input", str(tmp_path / "day.jsonl")], ["--output", str(tmp_path / "out")]
    own = {"explain": ["{}"], "invoke": ["{}"], "replay": source, "transform": source + out}.get(tool, [])
    url = f"http://127.0.0.1:{free_port()}"
    result = lmi(tool, *own, *([url] if tool == "conform" else ["--url", url]), input="hello\n")
    assert result.exit_code == (2 if tool == "replay" else 1)
    assert "API_KEY" in result.output
    assert "secret" not in result.output


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (("chat", "--url", "localhost"), "--url"),
        (("chat", "--set", "temperature"), "--set temperature has no value"),
        (("bench", "--header", "a b: c"), "--header 'a b'"),
        (("bench", "--header", "a: secret\nd"), "--header 'a'"),
        (("bench", "--header", "Bearer secret"), "--header must be NAME:VALUE"),
        (("bench", "--input-tokens", "x"), "--input-tokens"),
        (("explain", "--text", "\udcff"), "UTF-8"),
    ],
    ids=str,
)
def test_mistakes_are_told_by_name(arguments: tuple[str, ...], cause: str) -> None:
    result = lmi(*arguments, input="")
    assert result.exit_code != 0
    assert cause in result.output
    assert "secret" not in result.output
