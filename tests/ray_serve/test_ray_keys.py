"""What requests have in common: the model that they name, and how their prompts begin; and which replica gets them."""

from __future__ import annotations

import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmi_handlers.ray.answering import is_change
from lmi_handlers.ray.routing.keys import HEAD, holder, key_of, model_of
from lmi_handlers.ray.routing.members import Member, Members
from lmi_handlers.ray.routing.table import Table

FIELDS = st.sampled_from(["messages", "prompt", "inputs", "input", "text"])


@given(
    st.binary(max_size=3000),
    st.sampled_from(["model", "prefix"]),
    st.text(st.characters(max_codepoint=255), max_size=30),
    st.text(max_size=30),
)
def test_any_bytes_have_a_key_or_none(head: bytes, by: str, path: str, query: str) -> None:
    model = model_of(path, query, {b"x-amzn-sagemaker-target-model": head[:50]}, head)
    assert len(model) <= 256
    key = key_of(by, model, head)  # type: ignore[arg-type]
    assert key is None or 0 < len(key) <= 256 + 1 + 1024


@given(FIELDS, st.text(min_size=1024, max_size=2000), st.text(max_size=100), st.text(max_size=100))
def test_equal_beginnings_have_equal_keys_whatever_follows(field: str, text: str, one: str, other: str) -> None:
    heads = [json.dumps({"max_tokens": 5, field: text + rest, "model": "m"}).encode()[:HEAD] for rest in (one, other)]
    keys = {key_of("prefix", b"m", head) for head in heads}
    assert len(keys) == 1
    assert keys.isdisjoint({None, b"m", key_of("prefix", b"other", heads[0])})
    assert {key_of("model", b"m", head) for head in heads} == {b"m"}


def test_other_salts_have_other_keys() -> None:
    body = {"prompt": "x" * 2000}
    salts: tuple[dict[str, str], ...] = ({}, {"cache_salt": "a"}, {"cache_salt": "b"})
    keys = {
        key_of("prefix", b"m", json.dumps(asked).encode()) for salt in salts for asked in (body | salt, salt | body)
    }
    assert len(keys) == 3
    assert {key_of("model", b"m", json.dumps(body | salt).encode()) for salt in salts} == {b"m"}
    text = json.dumps({"prompt": json.dumps({"cache_salt": "a"}) + "x" * 2000}).encode()
    assert (
        key_of("prefix", b"m", text)
        == b"m\0\0" + json.dumps(json.dumps({"cache_salt": "a"}) + "x" * 2000).encode()[:1024]
    )


def test_short_prompts_have_no_key_of_their_own() -> None:
    head = json.dumps({"prompt": "x" * 1000}).encode()
    assert key_of("prefix", b"", head) is None
    assert key_of("prefix", b"french", head) == b"french"


@pytest.mark.parametrize(
    ("path", "query", "headers", "head", "model"),
    [
        ("/predictions/a b", "model_name=c", {}, b'{"model": "d"}', b"a b"),
        ("/models/a/invoke", "", {}, b"", b"a"),
        ("/models/a/1/invoke", "", {}, b"", b"a"),
        ("/invocations", "model_name=c&adapter=e", {b"x-amzn-sagemaker-target-model": b"f"}, b"", b"c"),
        ("/invocations", "adapter=e", {}, b"", b"e"),
        ("/invocations", "", {b"x-amzn-sagemaker-target-model": b"f.tar.gz"}, b'{"model": "d"}', b"f"),
        ("/invocations", "", {b"x-amzn-sagemaker-adapter-identifier": b"g"}, b"", b"g"),
        ("/v1/completions", "", {}, b'{"prompt": "\\"model\\": \\"x\\"", "model" : "d"}', b"d"),
        ("/invocations", "", {}, b'{"inputs": ["x"], "adapters": ["h", "i"]}', b"h"),
        ("/invocations", "", {}, b'{"inputs": "x"}', b""),
        ("/models", "", {}, b"", b""),
    ],
)
def test_the_model_of_a_request(path: str, query: str, headers: dict[bytes, bytes], head: bytes, model: bytes) -> None:
    assert model_of(path, query, headers, head) == model


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/models", True),
        ("PUT", "/models/a", True),
        ("DELETE", "/models/a/1", True),
        ("POST", "/adapters", True),
        ("POST", "/models/a/adapters/b/update", True),
        ("DELETE", "/adapters/b", True),
        ("POST", "/v1/unload_lora_adapter", True),
        ("post", "/models", True),
        ("GET", "/models", False),
        ("GET", "/adapters/b", False),
        ("POST", "/models/a/invoke", False),
        ("POST", "/models/a/1/invoke", False),
        ("POST", "/predictions/a", False),
        ("POST", "/invocations", False),
        ("DELETE", "/invocations", False),
    ],
)
def test_requests_that_load_and_unload(method: str, path: str, expected: bool) -> None:
    assert is_change(method, path) == expected


@given(st.binary(max_size=100))
def test_a_session_id_names_its_replica_or_nobody(text: bytes) -> None:
    header = b"x-amzn-sagemaker-session-id"
    assert holder({header: text}) is None
    session = str(uuid.uuid4()).encode()
    assert holder({header: session}) is None
    assert holder({header: session + b"-ab12cd34"}) == "ab12cd34"
    assert holder({}) is None


def test_a_replica_is_known_while_it_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("lmi_handlers.ray.routing.members.time.monotonic", lambda: now)
    members, one, other = Members(), Member("one", "h", 1, 0), Member("other", "h", 2, 5)
    assert members.report(one) is None, "nobody may forget the others because this one has just been started"
    now = 2.0
    assert members.report(other) is None
    now = 3.0
    assert members.report(one) == [one, other]
    now = 5.5
    assert members.report(None) == [one]
    now = 7.0
    assert members.report(None) == []


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(0, 50), st.binary(min_size=1, max_size=20))
def test_no_replica_gets_more_than_its_bound(loads: list[int], own: int, key: bytes) -> None:
    table = Table("me")
    table.update([Member(f"r{number}", "h", 1, load) for number, load in enumerate(loads)] + [Member("me", "h", 1, 99)])
    for _ in range(own):
        table.begin("me")
    counts = {f"r{number}": load for number, load in enumerate(loads)} | {"me": own}
    chosen = member.name if (member := table.choose(key)) else "me"
    assert counts[chosen] <= 1.25 * sum(counts.values()) / len(counts) + 1


def test_what_was_passed_on_since_the_last_report_counts() -> None:
    table = Table("me")
    table.update([Member("one", "h", 1, 0)])
    key = next(key for number in range(100) if table.choose(key := b"%d" % number) is not None)
    chosen = []
    for _ in range(10):
        chosen.append(name := "me" if (member := table.choose(key)) is None else member.name)
        table.begin(name)
    assert chosen[0] == "one"
    assert 4 <= chosen.count("one") <= 7
    for name in chosen:
        table.end(name)
    table.update([])
    assert table.get("one") == Member("one", "h", 1, 0), "it may be busy, and has sessions"
    table.forget("one")
    assert table.get("one") is None
    assert table.choose(key) is None
    assert table.load == 0
