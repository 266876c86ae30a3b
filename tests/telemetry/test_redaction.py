"""`LMI_REDACTED_KEYS`: values of these names are in no log line, whoever writes it."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
from facts import raises
from hypothesis import given
from hypothesis import strategies as st
from serving import StartServer, lmi_check

from lmi_handlers.core import redaction
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.log import JsonLines, TextLines
from lmi_handlers.core.redaction import is_hidden, key_patterns, redacted


@pytest.fixture
def patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide e-mail addresses and tenants."""
    monkeypatch.setattr(redaction, "_configured", lambda: key_patterns({"LMI_REDACTED_KEYS": "*email*, Tenant"}))


def test_names(patterns: None) -> None:
    hidden = ("email", "user_EMAIL", "tenant", "option.tenant", "parameters.email.x")
    assert [name for name in hidden if not is_hidden(name)] == []
    assert [name for name in ("tenants", "mail", "", "option.tenant_name") if is_hidden(name)] == []
    assert redacted("email=a@b.c tenant=7&n=1") == "email=****** tenant=******&n=1"


def test_a_name_within_a_value_counts(patterns: None) -> None:
    assert redacted("x=TOKEN=abc, y=email=a@b.c z=1") == "x=TOKEN=******, y=email=****** z=1"


def _rule(text: str) -> str:
    """The rule, written down as one expression, which takes quadratic time."""
    secret = r"([\w.-]*(?:TOKEN(?!IZER)|SECRET|KEY|PASSW|CREDENTIAL|SIGNATURE)[\w.-]*=)[^&\s,;]+"
    return re.sub(secret, r"\1******", re.sub(r"(?<=://)[^/\s]*@", "******@", text), flags=re.IGNORECASE)


@given(
    st.lists(st.sampled_from(["token", "TOKENIZER", "Key", "a", "=", "==", "&", " ", ",", ".", "-", "://", "@", "é"]))
)
def test_pairs_of_any_text(parts: list[str]) -> None:
    assert redacted("".join(parts)) == _rule("".join(parts))


@pytest.mark.parametrize("part", ["a", "key", "key=", "a.", "=", "://", "://a@", "a=b&"])
def test_long_texts_take_no_quadratic_time(part: str) -> None:
    """With a name that may begin at any letter, each of these would take hours."""
    redacted(part * 500_000)


def test_log_lines(patterns: None) -> None:
    record = logging.LogRecord("lmi_handlers", logging.INFO, "", 0, "m", None, None)
    vars(record).update({"tenant": 7, "nested": {"deep": {"Email": "a@b.c"}, "n": 1}})
    line = json.loads(JsonLines().format(record))
    assert (line["tenant"], line["nested"]) == ("******", {"deep": {"Email": "******"}, "n": 1})
    assert "a@b.c" not in TextLines(coloured=False).format(record)


def test_without_the_variable_nothing_more_is_hidden() -> None:
    assert key_patterns({}) is None
    assert key_patterns({"LMI_REDACTED_KEYS": " , "}) is None
    assert not is_hidden("email")
    assert redacted("email=a@b.c") == "email=a@b.c"


@pytest.mark.parametrize("text", ["a b", "x" * 101, "[a]", ",".join(["a"] * 101)])
def test_wrong_patterns(text: str) -> None:
    with raises(ConfigError, "LMI_REDACTED_KEYS 100 names"):
        key_patterns({"LMI_REDACTED_KEYS": text})


def test_a_server_and_lmi_check(start_server: StartServer, tmp_path: Path) -> None:
    environ = {"LMI_REDACTED_KEYS": "tenant,top_p,revision"}
    properties = "option.rolling_batch=echo\noption.custom_attributes=tenant,session_key,stage\noption.revision=hush\n"
    server = start_server(properties, environ=environ)
    custom = {"X-Amzn-SageMaker-Custom-Attributes": "tenant=hush;session_key=hush;stage=beta", "x-request-id": "r1"}
    answer = server.invoke({"inputs": "a", "parameters": {"top_p": 77}}, headers=custom)
    assert "77" in answer.text, "the client may see what it has sent"
    entry = server.log_entry("r1")
    assert entry["custom_attributes"] == {"tenant": "******", "session_key": "******", "stage": "beta"}
    assert re.fullmatch(r"InvalidRequest: \S*top_p: \*{6}", entry["error"])
    assert "hush" not in server.log

    shown = lmi_check(server.directory, environ=environ)
    assert shown.returncode == 0
    assert "hush" not in shown.stdout + shown.stderr
    assert re.search(r"option.revision +\*{6}", shown.stdout)
    (server.directory / "serving.properties").write_text("option.tenant=hush\noption.rolling_batch=echo\n")
    assert "hush" not in (shown := lmi_check(server.directory, environ=environ)).stdout + shown.stderr
