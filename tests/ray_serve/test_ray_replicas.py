"""A real Ray with two replicas, started by `lmi ray serve`: the same bytes as the server alone, routing, aborts, draining.

The replicas pass requests on to each other by prefix, so half of those with long prompts go through both.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import requests
from client_scripts import CLIENTS_PYTHON, QUIET, SCRIPTS
from facts import says
from paths import RECORDINGS
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from raw_http import connect, dechunked, read_to_end, request
from ray_serving import PATIENCE, started
from serving import Server, free_port

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PROPERTIES = (
    "option.rolling_batch=echo\noption.echo_faults=true\noption.max_model_len=16384\nmax_request_size=100000\n"
    "option.dialect=mindie\n"
    "option.echo_tokens_per_second=200\noption.session_history=true\n"
)
TEXT = "The quick brown fox jumps over the lazy dog. "
MESSAGES = [{"role": "user", "content": "Hi"}]
SESSION = "X-Amzn-SageMaker-Session-Id"
NEW = {SESSION: "NEW_SESSION"}
"""With it, the answer names the replica."""


def posted(path: str, **body: Any) -> Any:
    return pytest.param("POST", path, {"json": body}, id=path + ("?stream" if "stream" in str(body) else ""))


REQUESTS = [
    posted("/invocations", inputs=TEXT, parameters={"max_new_tokens": 4, "details": True}),
    posted("/invocations", inputs=TEXT, parameters={"max_new_tokens": 4}, stream=True),
    posted("/generate", inputs=TEXT, parameters={"max_new_tokens": 4, "details": True}),
    posted("/generate_stream", inputs=TEXT, parameters={"max_new_tokens": 4}),
    posted("/v1/chat/completions", messages=MESSAGES, max_tokens=4),
    posted("/v1/chat/completions", messages=MESSAGES, max_tokens=4, stream=True),
    posted("/v1/completions", prompt=TEXT, max_tokens=4, stream=True),
    posted("/v1/responses", input=TEXT, max_output_tokens=4, stream=True),
    posted("/chat/completions", model="m", messages=MESSAGES, maximum_tokens=4),
    posted("/", inputs=TEXT, parameters={"max_new_tokens": 4}),
    posted("/", inputs=TEXT, parameters={"max_new_tokens": 4}, stream=True),
    posted("/complete", model="m", prompt=TEXT, maximum_tokens=4),
    posted("/tokenize", inputs=TEXT),
    pytest.param("GET", "/ping", {}, id="ping"),
    pytest.param("GET", "/v1/models", {}, id="models"),
    pytest.param("GET", "/no/such%2Froute?a=%20b&c=", {}, id="404"),
    pytest.param("PUT", "/invocations", {"data": b"{}"}, id="405"),
    pytest.param("POST", "/invocations", {"data": b'{"inputs": '}, id="not JSON"),
    pytest.param("POST", "/invocations", {"data": b"x" * 200_000}, id="too large"),
    posted("/invocations", inputs=TEXT, parameters={"max_new_tokens": 0}),
    posted("/generate_stream", inputs=TEXT, parameters={"max_new_tokens": -1}),
    posted("/v1/chat/completions", messages=[], max_tokens=4),
    posted("/v1/completions", model="another", prompt=TEXT, max_tokens=4, stream=True),
]

OF_CONNECTIONS = {"connection", "date", "keep-alive", "server", "x-request-id"}
OF_ONE_ANSWER = {"x-compute-time", "x-inference-time", "x-queue-time", "x-time-per-token", "x-total-time"}
OF_ONE_ANSWER |= {"x-validation-time"}


MINDIE_REQUEST = json.loads((RECORDINGS / "mindie" / "request.json").read_text())
MINDIE_REQUEST["parameters"]["seed"] = 1  # else the answer has a random one
REQUESTS += [posted("/", **MINDIE_REQUEST), posted("/", **MINDIE_REQUEST | {"stream": True})]

VECTORS = [
    vector["input"]["request"]
    for vector in json.loads((RECORDINGS / "lmi" / "http-0.31.json").read_text())
    if "request" in vector["input"]
]
"""Requests whose answers by LMI are recorded. tests/apis/test_lmi_vectors.py compares those with the server alone."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("alone") / "m", PROPERTIES)
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory, port = tmp_path_factory.mktemp("ray") / "m", free_port()
    command = [
        sys.executable,
        "-m",
        "lmi_handlers.commands.cli",
        "ray",
        "serve",
        "--model-dir",
        str(directory),
        "--num-cpus",
    ]
    command += ["0.5", "--replicas", "2", "--routing", "prefix", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--env", "OPTION_SEED=1", "--env", "LMI_LOCAL_RUNTIME=true"]
    environ = {"RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1", "RAY_DEDUP_LOGS": "0"}
    with started(
        lambda: Server(directory, PROPERTIES, command=command, port=port, environ=environ | PATIENCE)
    ) as server:
        yield server


def answer(server: Server, method: str, path: str, options: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    headers = {"X-Request-Id": "the-same-id", "Content-Type": "application/json", **options.get("headers", {})}
    found = requests.request(method, server.url + path, timeout=60, **options | {"headers": headers})
    body = re.sub(rb'"(created|created_at|completed_at)":\s*\d+', b'"created":0', found.content)
    body = re.sub(rb'"(id|item_id)":\s*"(resp|msg)_\w+"', b'"id":"0"', body)
    kept = {name.lower(): value for name, value in found.headers.items() if name.lower() not in OF_CONNECTIONS}
    for name in OF_ONE_ANSWER & kept.keys():
        assert float(kept[name]) >= 0
        kept[name] = "0"
    if body != found.content:
        kept.pop("content-length", None)
    return found.status_code, kept, body


@pytest.mark.parametrize(("method", "path", "options"), REQUESTS)
def test_the_same_bytes_as_without_ray(
    alone: Server, on_ray: Server, method: str, path: str, options: dict[str, Any]
) -> None:
    assert_same(alone, on_ray, method, path, options)


def test_the_same_bytes_for_all_of_lmis_vectors(alone: Server, on_ray: Server) -> None:
    for given in VECTORS:
        path = re.sub("^/(predictions|models)/[a-z]+", r"/\1/m", given["path"])
        body = given.get("body") or ""
        data = body if isinstance(body, str) else json.dumps(body)
        assert_same(alone, on_ray, given["method"], path, {"data": data.encode(), "headers": given["headers"]})


def assert_same(alone: Server, on_ray: Server, method: str, path: str, options: dict[str, Any]) -> None:
    """Tokens share an event if the machine is busy, so this asks again until both answers had their tokens one by one."""
    deadline = time.monotonic() + 120
    while (here := answer(on_ray, method, path, options)) != (there := answer(alone, method, path, options)):
        assert time.monotonic() < deadline, f"{here}\n{there}"


def test_a_body_of_unknown_length_and_one_that_is_too_long(alone: Server, on_ray: Server) -> None:
    def parts(number: int) -> Iterator[bytes]:
        yield b'{"parameters": {"max_new_tokens": 3}, "inputs": "'
        for _ in range(number):
            yield b"x" * 1000
        yield b'"}'

    for number in (50, 150):
        answers = [answer(server, "POST", "/invocations", {"data": parts(number)}) for server in (alone, on_ray)]
        assert answers[0] == answers[1]


def test_the_request_id_is_answered_once(on_ray: Server) -> None:
    body = {"inputs": TEXT, "parameters": {"max_new_tokens": 2}}
    raw = read_to_end(connect(on_ray, request(body, "/invocations", "X-Request-Id: mine", "Connection: close")))
    assert raw.lower().count(b"x-request-id: mine") == 1


def test_equal_beginnings_go_to_one_replica(on_ray: Server) -> None:
    wait_until(lambda: len(replicas_of(on_ray, b"short")) == 2, on_ray)
    wait_until(lambda: equal_beginnings_meet(on_ray), on_ray)  # once each replica has heard of the other


def test_each_request_of_a_session_reaches_its_replica(on_ray: Server) -> None:
    wait_until(lambda: len(replicas_of(on_ray, b"short")) == 2, on_ray)  # HAProxy has found both
    begun = [chat(on_ray, f"My number is {number}.", NEW) for number in range(12)]
    sessions = [answer.headers[SESSION].partition(";")[0] for answer in begun]
    assert len({session.rpartition("-")[2] for session in sessions}) == 2
    for number, session in enumerate(sessions):
        answer = chat(on_ray, "Which?", {SESSION: session}, max_tokens=100)
        assert answer.status_code == 200, answer.text
        assert f"My number is {number}." in answer.text
    closed = requests.post(f"{on_ray.url}/invocations", json={"requestType": "CLOSE"}, headers={SESSION: session})
    assert closed.headers["X-Amzn-SageMaker-Closed-Session-Id"] == session
    for gone in (session, session[:-8] + "00000000", session[:-9], "another"):
        assert chat(on_ray, "Which?", {SESSION: gone}).status_code == 400


def test_loading_on_one_replica_only_is_refused(on_ray: Server) -> None:
    for path in ("/adapters", "//adapters", "/%61dapters", "/%2Fadapters"):
        answer = requests.post(on_ray.url + path, json={"name": "french", "src": "/opt/ml/adapters/french"})
        assert answer.status_code == 501
        assert "deploy it again" in answer.json()["error"]


@pytest.mark.parametrize(
    "field", ["X-Request-Id", "X-Request-Timeout-Seconds", "X-Session-Id", "serve-multiplexed-model-id"]
)
def test_no_header_is_an_error_of_ray(on_ray: Server, field: str) -> None:
    body = {"inputs": "Hi", "parameters": {"max_new_tokens": 2}}
    data = request(body, "/invocations", f"{field}: @", "Connection: close").replace(b"@", b"\xff\xfe")
    assert read_to_end(connect(on_ray, data)).startswith(b"HTTP/1.1 200 ")


def test_nobody_names_the_replica_that_answers_but_another_replica(on_ray: Server) -> None:
    answer = on_ray.invoke({"inputs": "Hi"}, headers={"X-LMI-Passed-On": "nobody"})
    assert answer.status_code == 421


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:8080"])
def test_host_names_are_checked_on_loopback_as_without_ray(alone: Server, on_ray: Server, host: str) -> None:
    headers = {"Host": host, "Origin": f"http://{host}"}
    for server in (alone, on_ray):
        answer = requests.post(f"{server.url}/invocations", json={"inputs": "x"}, headers=headers, timeout=60)
        assert answer.status_code == 403
        assert says(answer.text, f"{host} not allowed loopback")
        assert requests.get(f"{server.url}/metrics", headers=headers, timeout=60).status_code == 403


def test_a_websocket_is_refused(on_ray: Server) -> None:
    fields = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
    lines = ("GET /invocations HTTP/1.1", "Host: localhost", *fields, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
    with connect(on_ray, "\r\n".join(lines).encode() + b"\r\n\r\n") as sock:
        assert sock.recv(100).startswith(b"HTTP/1.1 400 ")


def test_tokens_arrive_as_they_are_generated(on_ray: Server) -> None:
    with connect(on_ray, streaming(TEXT * 4)) as sock:
        pieces = received(sock)
    assert len(pieces) > 10  # 180 tokens at 200 per second; a buffer on the way would make it one piece
    assert b'"generated_text"' in dechunked(b"".join(pieces))


def test_a_client_that_leaves_frees_its_place_wherever_it_is(on_ray: Server) -> None:
    for number in range(12):
        body = {"inputs": f"{number}" + "x" * 6000, "parameters": {"max_new_tokens": 6000}, "stream": True}
        with connect(on_ray, request(body, "/invocations", f"X-Request-Id: leaves-{number}")) as sock:  # for 30 seconds
            assert sock.recv(100)
        wait_until(lambda number=number: f'"request_id":"leaves-{number}"' in on_ray.log, on_ray)  # type: ignore[misc]
    lines = [line for line in on_ray.log.splitlines() if '"request_id":"leaves-' in line]
    assert len({line.partition(")")[0] for line in lines}) == 2, "some were passed on"
    assert all("ClientDisconnected" in line for line in lines)


def test_a_log_names_replica_and_node(on_ray: Server) -> None:
    wait_until(lambda: len(replicas_on_page(on_ray)) == 2, on_ray)
    page = replicas_on_page(on_ray)
    entry = json.loads(re.findall(r"\{.*\}", logged(on_ray, '"message":"engine ready"'))[0])
    assert (entry["ray_replica"], entry["node"]) in page
    assert re.search(r"are in /tmp/ray/session_\S+/logs on", logged(on_ray, "the logs of the replicas"))


def test_replicas_do_not_give_way_to_other_programs(on_ray: Server) -> None:
    wait_for_replicas(on_ray, 2)
    assert max(server.nice() for server in servers_of(on_ray)) <= psutil.Process().nice()


def test_no_agent_of_ray_chooses_its_port(on_ray: Server) -> None:
    """Ray gives up after 15 s if it waits for a port that an agent chooses."""
    children = psutil.Process(on_ray.process.pid).children(recursive=True)
    (raylet,) = [command for child in children if "raylet" in (command := child.cmdline())[0]]
    ports = dict(re.findall(r"--([a-z-_]+port)=(\d+)", " ".join(raylet)))
    agents = ("metrics-agent-port", "metrics_export_port", "runtime-env-agent-port", "listen-port")
    assert all(int(ports[name]) for name in agents), ports


def test_a_server_that_dies_cuts_its_streams_only_and_is_replaced(on_ray: Server) -> None:
    wait_for_replicas(on_ray, 2)
    wait_until(lambda: len(replicas_on_page(on_ray)) == 2, on_ray)
    before = replicas_on_page(on_ray)
    with contextlib.ExitStack() as stack:
        endless: list[socket.socket] = []
        while not all_are_busy(on_ray):  # with what they got from HAProxy: a short prompt is not passed on
            data = streaming("Hi", max_new_tokens=16000, ignore_eos_token=True)  # for 80 seconds
            endless.append(stack.enter_context(begun(on_ray, data)))
        socks = [stack.enter_context(begun(on_ray, streaming(TEXT * 40))) for _ in range(4)]  # some go through both
        servers_of(on_ray)[0].kill()
        # A request may have been on its way to this server, and its workers end some time after it.
        wait_until(lambda: all(answers_again(on_ray) for _ in range(10)), on_ray)
        wait_until(lambda: any(map(is_cut, endless)), on_ray)
        assert not all(map(is_cut, endless))
        for sock in socks:
            data = b"".join(received(sock))
            assert data.endswith(b"\r\n0\r\n\r\n") == (b'"generated_text"' in data)  # nobody takes a part for the whole
    wait_until(lambda: says(on_ray.log, "server replica ended SIGKILL"), on_ray)
    wait_for_replicas(on_ray, 2)
    wait_until(lambda: len(replicas_on_page(on_ray) & before) == 1, on_ray)
    wait_until(lambda: len(replicas_on_page(on_ray)) == 2, on_ray)


def test_metrics_are_those_of_all_replicas_even_if_one_hangs(on_ray: Server) -> None:
    wait_until(lambda: len(replicas_on_page(on_ray)) == 2, on_ray)
    both = replicas_on_page(on_ray)
    hanging = next(
        child
        for child in psutil.Process(on_ray.process.pid).children(recursive=True)
        if child.name().startswith("ray::ServeRepli")
    )
    hanging.suspend()
    try:
        wait_until(lambda: len(replicas_on_page(on_ray, missing=1)) == 1, on_ray)
        assert replicas_on_page(on_ray, missing=1) < both
    finally:
        hanging.resume()
    wait_until(lambda: replicas_on_page(on_ray) == both, on_ray)


def test_requests_are_answered_without_the_actor_that_knows_the_replicas(on_ray: Server) -> None:
    session = chat(on_ray, "My number is 7.", NEW).headers[SESSION].partition(";")[0]
    assert_continues(on_ray, session, "My number is 7.")  # both know which replica has it
    killed = processes(on_ray, "ray::Members")[0]
    killed.kill()
    assert_continues(on_ray, session, "My number is 7.")
    wait_until(lambda: processes(on_ray, "ray::Members"), on_ray)
    wait_until(lambda: len(replicas_of(on_ray, b"later" + b"x" * 1200)) == 1, on_ray)


def test_a_replica_that_ends_takes_its_sessions_along_and_nothing_else(on_ray: Server) -> None:
    keys = [b"%d" % number + b"y" * 1200 for number in range(12)]

    def answering() -> set[str]:
        return set().union(*(replicas_of(on_ray, key, 2) for key in keys))

    wait_until(lambda: len(answering()) == 2, on_ray)
    before = answering()
    session = chat(on_ray, "My number is 7.", NEW).headers[SESSION].partition(";")[0]
    gone = session.rpartition("-")[2]
    assert {gone} < before
    engine, *_ = [
        each for each in processes(on_ray, "lmi_handlers.engine.process") if each.environ()["LMI_REPLICA"] == gone
    ]
    engine.parents()[1].kill()  # the server's first process
    statuses = Counter(status(on_ray, key.decode(), {}) for key in keys * 2)
    # What was on its way may fail until the replica has ended, too: HAProxy says 500 then.
    assert set(statuses) <= {0, 200, 500, 503}
    wait_until(lambda: all(status(on_ray, key.decode(), {}) == 200 for key in keys), on_ray)
    wait_until(lambda: status(on_ray, "Which?", {SESSION: session}) == 400, on_ray)
    assert all(gone not in replicas_of(on_ray, key, 2) for key in keys)
    assert_continues(on_ray, first_session(on_ray, before), "My number is 8.")


def test_real_clients_stream_through_ray(on_ray: Server) -> None:
    with streaming_clients(on_ray, TEXT * 2) as clients:
        outcomes = json.loads(clients.communicate(timeout=90)[0])
    for client, outcome in outcomes.items():
        assert not outcome["raised"], client
        assert TEXT * 2 in outcome["text"], client


def test_no_real_client_takes_a_part_for_the_whole(on_ray: Server) -> None:
    with streaming_clients(on_ray, TEXT * 40) as clients:  # for nine seconds
        for server in servers_of(on_ray):
            server.parents()[0].kill()  # the replica
        outcomes = json.loads(clients.communicate(timeout=90)[0])
    for client, outcome in outcomes.items():
        assert outcome["text"], client
        assert outcome["raised"], client
    wait_for_replicas(on_ray, 2)


def test_a_shutdown_lets_requests_finish(on_ray: Server) -> None:
    """The last test of this module, because it ends Ray."""
    with connect(on_ray, streaming(TEXT * 16)) as sock:  # for four seconds
        assert sock.recv(100)
        on_ray.process.send_signal(signal.SIGTERM)
        assert b'"generated_text"' in b"".join(received(sock))
    assert on_ray.process.wait(90) == 0, on_ray.log


def replicas_on_page(on_ray: Server, missing: int = 0) -> set[tuple[str, str]]:
    """The replica and node of each gauge that every replica has, or nothing if other than `missing` are missing."""
    try:
        page = requests.get(f"{on_ray.url}/metrics", timeout=10)
    except requests.RequestException:  # asked a replica that hangs
        return set()
    if page.status_code != 200:
        return set()
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(page.text):
        found[family.name] = family.samples
    if found["lmi_replicas_missing"][0].value != missing:
        return set()
    samples = found["vllm:num_requests_running"]
    assert len(samples) == found["lmi_replicas"][0].value - missing
    assert {sample.labels["model_name"] for sample in samples} == {"m"}
    return {(sample.labels["replica"], sample.labels["node"]) for sample in samples}


def all_are_busy(on_ray: Server) -> bool:
    """Whether each of the two replicas is answering something."""
    page = requests.get(f"{on_ray.url}/metrics", timeout=60).text
    families = {family.name: family.samples for family in text_string_to_metric_families(page)}
    running = [sample.value for sample in families["vllm:num_requests_running"]]
    return len(running) == 2 and all(running)


@contextlib.contextmanager
def streaming_clients(on_ray: Server, prompt: str) -> Iterator[subprocess.Popen[str]]:
    """Run the script, and go on when all of its clients have received something. Its output has what became of them."""
    command = [CLIENTS_PYTHON, str(SCRIPTS / "streaming_clients.py"), on_ray.url, prompt]
    environ = {"PATH": os.defpath, **QUIET}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as clients:
        try:
            assert clients.stdout is not None
            assert clients.stdout.readline() == "streaming\n"
            yield clients
        finally:
            clients.kill()


def streaming(text: str = TEXT, *fields: str, **parameters: object) -> bytes:
    body = {"inputs": text, "parameters": {"max_new_tokens": 4000, **parameters}, "stream": True}
    return request(body, "/invocations", *fields)


def begun(on_ray: Server, data: bytes) -> socket.socket:
    """The connection of a stream that has begun."""
    sock = connect(on_ray, data)
    assert sock.recv(100)
    return sock


def is_cut(sock: socket.socket) -> bool:
    """Whether an endless stream has ended. Reads what has arrived of it."""
    sock.setblocking(False)
    try:
        while sock.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


def received(sock: socket.socket) -> list[bytes]:
    """What arrives until the stream ends, piece by piece."""
    found: list[bytes] = []
    while not b"".join(found[-2:]).endswith(b"\r\n0\r\n\r\n") and (piece := sock.recv(1 << 16)):
        found.append(piece)
    return found


def answers_again(on_ray: Server) -> bool:
    with contextlib.suppress(requests.ConnectionError):
        answer = on_ray.invoke({"inputs": "again", "parameters": {"max_new_tokens": 5}})
        return answer.status_code == 200 and answer.json() == {"generated_text": "again"}
    return False


def wait_until(condition: Callable[[], object], on_ray: Server) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline, on_ray.log
        time.sleep(0.2)


def logged(on_ray: Server, text: str) -> str:
    """The line of the log with this text, once it is there."""
    wait_until(lambda: text in on_ray.log, on_ray)
    return next(line for line in on_ray.log.splitlines() if text in line)


def servers_of(on_ray: Server) -> list[psutil.Process]:
    """The first processes of the replicas' servers whose engines run."""
    found = []
    for child in psutil.Process(on_ray.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):  # it has just ended
            if "lmi_handlers.engine.process" in child.cmdline():
                found.append(child.parents()[1])  # the engine's parent is the supervisor
    return found


def chat(server: Server, text: str, headers: dict[str, str], max_tokens: int = 3) -> requests.Response:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}
    return requests.post(f"{server.url}/invocations", json=body, headers=headers, timeout=60)


def status(server: Server, text: str, headers: dict[str, str]) -> int:
    """The status of an answer, 0 if there is none: its replica has just ended."""
    try:
        return chat(server, text, headers).status_code
    except requests.ConnectionError:
        return 0


def replicas_of(server: Server, text: bytes, number: int = 8) -> Counter[str]:
    """The replicas that answer requests with this text."""
    answers = [chat(server, text.decode(), NEW) for _ in range(number)]
    assert [answer.status_code for answer in answers] == [200] * number, answers[0].text
    return Counter(answer.headers[SESSION].partition(";")[0].rpartition("-")[2] for answer in answers)


def assert_continues(server: Server, session: str, text: str) -> None:
    """The session, which began with this text, is found wherever its requests arrive."""
    for _ in range(8):
        answer = chat(server, "Which?", {SESSION: session}, max_tokens=100)  # `echo` begins with the first message
        assert text in answer.text, answer.text


def first_session(server: Server, known: set[str]) -> str:
    """The first session of a replica that is not known. Waits until there is one."""
    for _ in range(600):
        answer = chat(server, "My number is 8.", NEW)
        session = answer.headers[SESSION].partition(";")[0] if answer.status_code == 200 else "-"
        if session.rpartition("-")[2] not in {*known, ""}:
            return session
        time.sleep(0.2)
    raise AssertionError(server.log)


def equal_beginnings_meet(server: Server) -> bool:
    """Whether requests with a beginning go to one replica, and all beginnings together to both."""
    found = [replicas_of(server, b"%d" % number + b"x" * 1200) for number in range(8)]
    return all(len(each) == 1 for each in found) and len(set.union(*map(set, found))) == 2


def processes(server: Server, text: str) -> list[psutil.Process]:
    children = psutil.Process(server.process.pid).children(recursive=True)
    return [child for child in children if text in " ".join(child.cmdline())]


def wait_for_replicas(on_ray: Server, number: int) -> None:
    wait_until(lambda: len(servers_of(on_ray)) == number, on_ray)
