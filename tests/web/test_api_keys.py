"""API keys in a file: who may send requests, and what the log and the metrics say of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import requests
from facts import raises
from serving import Server, StartServer
from waiting import wait_until
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.meter import Paid
from lmi_handlers.core.usage import Usage
from lmi_handlers.metrics import keys
from lmi_handlers.metrics.requests import RequestMetrics
from lmi_handlers.web.api_keys import MAX_FILE_BYTES, MAX_KEYS, ApiKeys, read_api_keys

A, B, C = "key-of-team-a", "key-of-team-b", "key-of-team-c"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"# tenants\n\nteam-a {A}\n team-b\t{B} \nteam-a {C}\n")
    return path


def test_a_line_is_a_label_and_a_key(path: Path) -> None:
    assert read_api_keys(path) == {A: "team-a", B: "team-b", C: "team-a"}


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "no key"),
        ("# nothing\n", "no key"),
        (f"team-a {A}\nteam-b", "line 2 label 64 8 512"),
        (f"team-a {A} more", "line 1 label 64 8 512"),
        (f"team/a {A}", "line 1 label 64 8 512"),
        (f"{'a' * 65} {A}", "line 1 label 64 8 512"),
        ("team-a short", "line 1 label 64 8 512"),
        (f"team-a {'a' * 513}", "line 1 label 64 8 512"),
        ("team-a schlüssel", "line 1 label 64 8 512"),
        (f"team-a {A}\nteam-b {A}", "line 2 key another label"),
        ("".join(f"team key-{number:04}\n" for number in range(MAX_KEYS + 1)), f"{MAX_KEYS} keys"),
        ("#" * (MAX_FILE_BYTES + 1), f"{MAX_FILE_BYTES} bytes"),
    ],
)
def test_a_file_with_a_mistake_is_refused_and_not_quoted(path: Path, text: str, cause: str) -> None:
    path.write_text(text)
    with raises(ConfigError, cause) as caught:
        read_api_keys(path)
    assert A not in str(caught.value)


def test_a_file_that_every_user_may_write_or_none_can_read_is_refused(path: Path) -> None:
    path.chmod(0o666)
    with raises(ConfigError, f"{path} written every user"):
        read_api_keys(path)
    path.unlink()
    with raises(ConfigError, f"{path} read FileNotFoundError"):
        read_api_keys(path)


def test_the_key_of_the_environment_is_one_of_many(path: Path) -> None:
    both = ApiKeys("schlüssel", path)
    assert [both.label_of(key.encode()) for key in ("schlüssel", A, B, "", A[:-1])] == [
        "API_KEY",
        "team-a",
        "team-b",
        None,
        None,
    ]
    assert (both.required, ApiKeys("k").required, ApiKeys(None).required, ApiKeys("").required) == (
        True,
        True,
        False,
        False,
    )


def test_a_file_may_have_so_many_keys(path: Path) -> None:
    path.write_text("".join(f"team key-{number:04}\n" for number in range(MAX_KEYS)))
    assert len(read_api_keys(path)) == MAX_KEYS


def test_a_key_of_the_same_length_is_written_in_place(path: Path) -> None:
    os.utime(path, (1, 1))  # file systems count time in milliseconds
    keys = ApiKeys(None, path)
    path.write_text(path.read_text().replace(A, "key-of-team-z"))
    wait_until(lambda: keys.label_of(b"key-of-team-z") == "team-a")
    assert keys.label_of(A.encode()) is None


def test_only_so_many_labels_have_series(tmp_path: Path) -> None:
    one, other = keys.LabelMetrics(keys.KEYS, tmp_path / "keys"), keys.LabelMetrics(keys.KEYS, tmp_path / "keys")
    assert one.values() is None
    assert keys.exposition(keys.KEYS, [({}, one.values())]) == ""
    one.ended(Usage(started=0.0), "other")
    for metrics in (one, other):  # of two processes
        for number in range(keys.MAX_LABELS + 2):
            metrics.ended(Usage(started=0.0, prompt_tokens=3, generated_tokens=2), f"team-{number}")
    page = keys.exposition(keys.KEYS, [({"model_name": "m"}, one.values())])
    assert 'lmi_key_requests_total{model_name="m",key_label="team-0"} 2\n' in page
    assert 'lmi_key_prompt_tokens_total{model_name="m",key_label="team-255"} 6\n' in page
    assert 'lmi_key_generated_tokens_total{model_name="m",key_label="other"} 8\n' in page
    assert page.count('lmi_key_requests_total{model_name="m",key_label="other"} 5\n') == 1
    assert "team-256" not in page
    one.ended(Usage(started=0.0, prompt_tokens=3, generated_tokens=7, joined=True), "team-0")
    one.ended(Usage(started=0.0, prompt_tokens=3, generated_tokens=7, joined=True, paid=Paid(2)), "team-0")
    page = keys.exposition(keys.KEYS, [({}, one.values())])
    assert 'lmi_key_requests_total{key_label="team-0"} 4\n' in page
    assert 'lmi_key_prompt_tokens_total{key_label="team-0"} 6\n' in page
    assert 'lmi_key_generated_tokens_total{key_label="team-0"} 9\n' in page
    assert 'lmi_key_cached_tokens_total{key_label="team-0"} 0\n' in page
    one.ended(Usage(started=0.0, prompt_tokens=3, cached_tokens=2, joined=True, paid=Paid()), "team-0")
    page = keys.exposition(keys.KEYS, [({}, one.values())])
    assert 'lmi_key_prompt_tokens_total{key_label="team-0"} 6\n' in page
    assert 'lmi_key_cached_tokens_total{key_label="team-0"} 2\n' in page
    one.close()
    other.close()


def post(server: Server, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    return server.invoke({"inputs": "abc", "parameters": {"max_new_tokens": 2}}, headers=headers).status_code


def replaced(path: Path) -> Callable[[str], None]:
    """Return what replaces the file as a whole, as deployments do."""

    def replace(text: str) -> None:
        new = path.with_suffix(".new")
        new.write_text(text)
        new.replace(path)

    return replace


def test_keys_change_while_the_server_runs(start_server: StartServer, path: Path) -> None:
    server = start_server("option.rolling_batch=echo\n", "--api-key-file", str(path))
    assert [post(server, key) for key in (A, B, C, "other")] == [200, 200, 200, 401]
    replace = replaced(path)
    replace("team-b short\n")
    wait_until(lambda: post(server, A) == 200 and "the new API keys cannot be used" in server.log)
    address = f"ws://127.0.0.1:{server.port}/invocations-bidirectional-stream"
    with connect(address, additional_headers={"x-api-key": A}) as client:
        client.send('{"inputs": "abc"}')
        assert client.recv(60) == '{"generated_text": "abc"}'
        replace(f"team-b {B}\n")
        wait_until(lambda: post(server, A) == 401)
        client.send('{"inputs": "abc"}')
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(60)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
    assert post(server, B) == 200
    entry = server.log_entry(server.invoke({"inputs": "a"}, headers={"x-api-key": B}).headers["x-request-id"])
    assert entry["key_label"] == "team-b"
    page = requests.get(f"{server.url}/metrics", timeout=60).text
    assert 'lmi_key_requests_total{key_label="team-b"} 3\n' in page
    assert 'lmi_key_generated_tokens_total{key_label="team-a"} ' in page
    assert "an LMI_API_KEY_FILE is set" in server.log  # there is no console
    for key in (A, B, C):
        assert key not in server.log + page


def test_a_request_ends_although_its_label_has_no_room(tmp_path: Path) -> None:
    metrics = RequestMetrics(tmp_path / "metrics", "m")
    keys.series_dir(tmp_path / "metrics", keys.KEYS).write_text("")  # in the place of the directory
    metrics.ended(Usage(started=0.0, key_label="team-a"), None)
    assert "\ntgi_request_count 1\n" in metrics.page()
    metrics.close()
