"""The routes of the console: who gets the page, who gets the data, and what is in it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import requests
from serving import API_KEY, Server, StartServer
from waiting import wait_until

from lmi_handlers.core.usage import Usage
from lmi_handlers.laptop.console import routes
from lmi_handlers.laptop.console.routes import static_files
from lmi_handlers.laptop.console.state import ServerView, Snapshot, State
from lmi_handlers.metrics.requests import RequestMetrics
from lmi_handlers.preflight.pages import why_no_pages
from lmi_handlers.telemetry.recent import KEPT, RecentReader, RecentRequest, RecentRequests

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
DATA = ("/console/data/state", "/console/data/configuration")
MOST_BYTES = 170_000
MOST_VENDORED = 75_000


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with an API key and a console that was asked for."""
    properties = "option.rolling_batch=echo\noption.console=true\noption.console_prompts=true\n"
    server = Server(tmp_path_factory.mktemp("guarded") / "m", properties, environ={"API_KEY": API_KEY})
    yield server.wait_ready()
    server.stop()


def get(server: Server, path: str, **headers: str) -> requests.Response:
    return requests.get(server.url + path, headers=headers, timeout=30)


def state(server: Server, **headers: str) -> Any:
    answer = get(server, "/console/data/state", **headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


# The page


def test_browsers_get_the_page(echo_server: Server) -> None:
    answer = get(echo_server, "/", Accept=BROWSER)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "accept" in answer.headers["Vary"].lower()
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "Set-Cookie" not in answer.headers
    for link in re.findall(r'(?:src|href)="([^"#]+)"', answer.text):
        assert get(echo_server, f"/{link}", Accept=BROWSER).status_code == 200, link
    assert answer.headers["Cache-Control"] == "no-cache"


@pytest.mark.parametrize("path", ["/", "/console/main.js", "/console/console.css"])
def test_files_are_sent_once(echo_server: Server, path: str) -> None:
    answer = get(echo_server, path, Accept=BROWSER)
    again = get(echo_server, path, **{"Accept": BROWSER, "If-None-Match": answer.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    head = requests.head(echo_server.url + path, headers={"Accept": BROWSER}, timeout=30)
    assert (head.status_code, head.content) == (200, b"")
    assert {name: head.headers[name] for name in ("ETag", "Content-Length", "Content-Security-Policy")} == {
        name: answer.headers[name] for name in ("ETag", "Content-Length", "Content-Security-Policy")
    }


def test_it_is_small_and_loads_nothing_from_elsewhere() -> None:
    files = static_files()
    vendored = {name for name in files if name.startswith("vendor/")}
    assert sum(len(files[name]) for name in vendored) < MOST_VENDORED
    assert sum(len(content) for name, content in files.items() if name not in vendored) < MOST_BYTES
    folder = Path(routes.__file__).parent / "static"
    assert all((folder / name).with_suffix(".LICENSE").is_file() for name in vendored)
    for name, content in files.items():
        text = content.decode()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), name
        if name.endswith((".html", ".css")):
            assert "//" not in text.replace("http://www.w3.org/2000/svg", "").replace("s3://", ""), name


@pytest.mark.parametrize("path", ["/console/", "/console/nope.js", "/console/../app.py", "/console/%2e%2e/routes.py"])
def test_other_files_are_not_served(echo_server: Server, path: str) -> None:
    request = requests.Request("GET", echo_server.url).prepare()
    request.url = echo_server.url + path
    with requests.Session() as session:
        assert session.send(request, timeout=30).status_code == 404


def test_where_it_is_off(start_server: StartServer) -> None:
    server = start_server("option.rolling_batch=echo\noption.console=false\n")
    assert "console/main.js" not in get(server, "/", Accept=BROWSER).text
    assert [get(server, path).status_code for path in ("/console/main.js", *DATA)] == [404] * 3


@pytest.mark.parametrize(
    ("option", "host", "environ", "on"),
    [
        (None, "127.0.0.1", {}, True),
        (None, "127.0.0.1", {"API_KEY": "k"}, False),
        (None, "0.0.0.0", {}, False),
        (True, "0.0.0.0", {"API_KEY": "k"}, True),
        (False, "127.0.0.1", {}, False),
    ],
)
def test_default(option: bool | None, host: str, environ: dict[str, str], on: bool) -> None:
    assert (why_no_pages(option, host, environ) == "") is on


def test_a_key_turns_it_off_unless_it_was_asked_for(guarded_server: Server, guarded: Server) -> None:
    assert get(guarded_server, "/console/main.js").status_code == 404
    assert get(guarded, "/console/main.js").status_code == 200


# The data


@pytest.mark.parametrize("path", DATA)
def test_data_needs_the_key(guarded: Server, path: str) -> None:
    assert get(guarded, path).status_code == 401
    assert get(guarded, path, Authorization=f"Bearer {API_KEY}x").status_code == 401
    answer = get(guarded, path, Authorization=f"Bearer {API_KEY}")
    assert (answer.status_code, answer.headers["Cache-Control"]) == (200, "no-store")


@pytest.mark.parametrize("path", DATA)
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "evil.example"},
    ],
)
def test_other_sites_get_no_data(echo_server: Server, path: str, headers: dict[str, str]) -> None:
    assert get(echo_server, path, **headers).status_code == 403


def test_state(echo_server: Server) -> None:
    echo_server.invoke({"inputs": "abc", "parameters": {"max_new_tokens": 2}}, headers={"x-request-id": "of-state"})
    echo_server.invoke({"inputs": "a secret", "parameters": {"temperature": -1}}, headers={"x-request-id": "refused"})

    def latest() -> dict[str, Any]:
        return {request["request_id"]: request for request in state(echo_server)["requests"]}

    wait_until(lambda: {"of-state", "refused"} <= latest().keys())
    answered, refused = latest()["of-state"], latest()["refused"]
    assert (answered["status"], answered["prompt_tokens"], answered["generated_tokens"]) == (200, 3, 2)
    assert (answered["path"], answered["finish_reasons"], answered["error"]) == ("/invocations", ["length"], None)
    assert answered["phases"].keys() >= {"tokenize", "queue", "prefill"}
    assert refused["status"] >= 400
    assert "temperature" in refused["error"]
    whole = state(echo_server)
    (model,) = whole["models"]
    assert (model["name"], model["state"], model["capabilities"]["backend"]) == ("m", "ready", "echo")
    assert "vllm:num_requests_running" in whole["metrics"]
    assert "a secret" not in str(whole)


def test_a_page_gets_the_metrics_that_it_shows(echo_server: Server) -> None:
    metrics = get(echo_server, "/console/data/state?model=m&since=nonsense").json()["metrics"]
    names = set(re.findall(r"^[\w:]+", metrics, re.MULTILINE))
    assert names >= {"vllm:num_requests_running", "vllm:inter_token_latency_seconds_bucket", "lmi_load_seconds"}
    assert not names & {"tgi_request_count", "vllm:e2e_request_latency_seconds_sum"}


def test_a_page_gets_only_the_requests_that_it_has_not_seen(tmp_path: Path) -> None:
    """A time in the future, or one that is none, gets all of them. With 100 requests, a later poll is a few kilobytes."""
    metrics = RequestMetrics(tmp_path / "metrics", "m")
    server = ServerView(
        version="1",
        run="r",
        worker=1,
        workers=1,
        dialect="tgi",
        manages=False,
        has_several_models=True,
        keeps_prompts=False,
    )
    kept = [
        RecentRequest(time=1000.0 - age, worker=1, model="m", request_id=str(age), path="/", status=200)
        for age in range(KEPT)
    ]
    values = {"m": metrics.values(), "other": metrics.values()}
    snapshot = Snapshot(time=1000.0, server=server, models=[], requests=kept, values=values)

    def polled(since: float) -> State:
        return snapshot.state(manages=True, model="m", since=since)

    assert [request.request_id for request in polled(1000.0).requests] == ["0", "1"]
    assert [len(polled(since).requests) for since in (990.0, 0.0, 1001.0, 1003.0, math.nan, math.inf)] == [
        12,
        KEPT,
        1,
        KEPT,
        KEPT,
        KEPT,
    ]
    assert len(msgspec.json.encode(polled(1000.0))) < 8000
    assert polled(0.0).server.manages
    metrics.close()


def test_prompts_are_shown_where_an_option_says_so(guarded: Server) -> None:
    key = {"Authorization": f"Bearer {API_KEY}"}
    guarded.invoke({"messages": [{"role": "user", "content": "hello prompt"}]}, headers=key)
    guarded.invoke({"inputs": "x" * 1000}, headers=key)
    wait_until(
        lambda: {request["prompt"] for request in state(guarded, **key)["requests"]} >= {"hello prompt", "x" * 300}
    )


def test_configuration(echo_server: Server) -> None:
    view = get(echo_server, "/console/data/configuration").json()
    settings = {setting["key"]: setting for setting in view["settings"]}
    assert (view["model"], view["backend"]) == ("m", "echo")
    assert (settings["option.max_model_len"]["value"], settings["option.max_model_len"]["is_set"]) == ("4096", True)


# The last requests


def fields(number: int, **values: object) -> dict[str, Any]:
    common = {"model": "m", "request_id": f"r{number}", "path": "/invocations", "status": 200}
    return common | {"total_ms": 1.0, "first_token_ms": None} | values


def test_the_last_requests_of_all_workers_are_kept(tmp_path: Path) -> None:
    directory = tmp_path / "recent"
    for worker in range(2):
        recent = RecentRequests(directory)
        for number in range(KEPT + 7):
            recent.add(fields(number, request_id=f"{worker}-{number}"), Usage(started=0.0))
        recent.close()
    kept = RecentReader().read([directory, tmp_path / "missing"])
    assert [request.request_id for request in kept] == [f"1-{number}" for number in reversed(range(7, KEPT + 7))]


@pytest.mark.parametrize("text", ["x", "\x00", "\x01", "漢", "🙂", '"', "<b>"])
def test_long_texts_are_shortened(text: str, tmp_path: Path) -> None:
    recent = RecentRequests(tmp_path / "recent")
    long = text * 5000
    recent.add(fields(0, model=long, path=long, error=long, request_id="r" * 256), Usage(started=0.0))
    recent.add(fields(1), Usage(started=0.0))
    last, long_one = RecentReader().read([tmp_path / "recent"])
    assert last.request_id == "r1"
    assert long.startswith(long_one.model)
    assert 50 <= len(long_one.error or "") <= 300
    recent.close()
