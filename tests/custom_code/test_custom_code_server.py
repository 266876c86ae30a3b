"""A server whose `model.py` answers, well or badly, as each request asks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import psutil
import pytest
import requests
from botocore.config import Config
from botocore.exceptions import ClientError
from custom_handlers import ON_REQUEST
from facts import says
from serving import Server
from waiting import wait_until


def serve(directory: Path, properties: str) -> Server:
    directory.mkdir()
    (directory / "model.py").write_text(ON_REQUEST)
    return Server(directory, "minWorkers=2\nmaxWorkers=2\n" + properties, "--local-runtime")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    properties = (
        "engine=Python\noption.task=text-classification\noption.dtype=float16\noption.mine=a b\n"
        "max_request_size=100000\n"
    )
    server = serve(tmp_path_factory.mktemp("code") / "m", properties)
    yield server.wait_ready()
    server.stop()


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose requests may take three seconds."""
    server = serve(tmp_path_factory.mktemp("code") / "m", "option.predict_timeout=3\n")
    yield server.wait_ready()
    server.stop()


def call(server: Server, case: str, data: bytes | str = b"{}", **options: Any) -> requests.Response:
    headers = {"Content-Type": "application/json", "X-Case": case} | options.pop("headers", {})
    return requests.post(server.url + options.pop("path", "/invocations"), data, headers=headers, timeout=60, **options)


@pytest.mark.parametrize("path", ["/invocations", "/predictions/m", "/predictions/m/1", "/models/m/invoke"])
def test_json_both_ways_with_the_codes_headers(server: Server, path: str) -> None:
    answer = call(server, "echo", '{"a": [1, "é"]}'.encode(), path=path, headers={"x-request-id": "r1"})
    assert (answer.status_code, answer.json()) == (200, {"a": [1, "é"]})
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["X-Seen"] == "yes"
    assert answer.headers["x-request-id"] == "r1"
    assert answer.headers["Content-Length"] == str(len(answer.content))
    assert answer.headers["Pragma"] == "no-cache"


def test_execution_parameters_are_for_single_records(server: Server) -> None:
    answer = requests.get(server.url + "/execution-parameters", timeout=60)
    assert answer.json() == {"MaxConcurrentTransforms": 1, "BatchStrategy": "SINGLE_RECORD", "MaxPayloadInMB": 1}


def test_bytes_of_any_type_pass_unchanged(server: Server) -> None:
    data = bytes(range(256)) * 300
    answer = call(server, "bytes", data, headers={"Content-Type": "audio/x-odd; rate=8"})
    assert (answer.content, answer.headers["Content-Type"]) == (data, "audio/x-odd")


def test_without_a_content_type_there_is_no_such_header(server: Server) -> None:
    answer = call(server, "status", "200")
    assert (answer.content, answer.headers.get("Content-Type")) == (b"text", None)


def test_the_first_call_gets_the_options_as_they_were_written(server: Server) -> None:
    options = call(server, "options").json()
    assert options["task"] == "text-classification"
    assert options["dtype"] == "float16"
    assert options["mine"] == "a b"
    assert options["model_dir"] == str(server.directory)
    assert options["device_id"] == "-1"


def test_properties_are_the_headers(server: Server) -> None:
    seen = call(
        server, "properties", headers={"X-Amzn-SageMaker-Session-Id": "s", "Content-Type": "text/csv; a=b"}
    ).json()
    assert seen["X-Amzn-Sagemaker-Session-Id"] == "s"
    assert seen["Content-Type"] == "text/csv"


def test_query_and_form_are_content(server: Server) -> None:
    assert call(server, "content", b"x", params={"q": "1"}).json() == [["q", "1"], ["data", "x"]]
    form = requests.post(
        f"{server.url}/invocations", {"a": "1"}, files={"f": b"file"}, headers={"X-Case": "content"}, timeout=60
    )
    assert form.json() == [["a", "1"], ["f", "file"]]
    assert call(
        server, "content", b"a=1&b=2", headers={"Content-Type": "application/x-www-form-urlencoded"}
    ).json() == [["a", "1"], ["b", "2"]]


def test_a_form_has_a_limited_number_of_fields(server: Server) -> None:
    part = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'
    for content_type, one, end in (
        ("application/x-www-form-urlencoded", b"a=1&", b"a=1"),
        ("multipart/form-data; boundary=b", part, part + b"--b--\r\n"),
    ):
        headers = {"Content-Type": content_type}
        assert len(call(server, "content", one * 999 + end, headers=headers).json()) == 1000
        answer = call(server, "content", one * 1000 + end, headers=headers)
        assert answer.status_code == 413
        assert "at most 1000 fields" in answer.text


@pytest.mark.parametrize("status", [200, 201, 404, 500, 599])
def test_status_codes(server: Server, status: int) -> None:
    answer = call(server, "status", str(status))
    assert (answer.status_code, answer.content) == (status, b"text")


def test_none_is_no_content(server: Server) -> None:
    answer = call(server, "none")
    assert (answer.status_code, answer.content) == (204, b"")


def test_an_error_of_the_codes_own(server: Server) -> None:
    answer = call(server, "error")
    assert answer.status_code == 422
    assert answer.content == b'{\n  "code":422,\n  "message":"invoke handler failure",\n  "error":"bad input"\n}'


@pytest.mark.parametrize(
    ("case", "content"),
    [
        ("stream", b'{"number": 0}\n{"number": 1}\n{"number": 2}\n'),
        ("stream lists", b'{"outputs": ["a"]}\n{"outputs": ["\\u00e9"]}\n'),
        ("stream formatted", b"<a><b>"),
        ("asynchronous stream", b"0;1;2;"),
    ],
)
def test_streams(server: Server, case: str, content: bytes) -> None:
    answer = call(server, case)
    assert (answer.status_code, answer.content) == (200, content)
    assert answer.headers["Transfer-Encoding"] == "chunked"


def test_a_generator_of_outputs_has_its_headers_in_the_first(server: Server) -> None:
    answer = call(server, "generator")
    assert (answer.status_code, answer.headers["X-Part"], answer.content) == (201, "one", b"onetwo")


def test_an_asynchronous_answer(server: Server) -> None:
    assert call(server, "asynchronous", b"[1]").json() == {"later": [1]}


@pytest.mark.parametrize(
    ("case", "cause"),
    [
        ("raise", "a good reason"),
        ("raise nothing", "ValueError"),
        ("type", "Invalid str"),
        ("code", "status 99 200 599"),
        ("code of a stream", "status 99 200 599"),
        ("not json", "range JSON compliant"),
        ("sys.exit", "raised SystemExit 3"),
        ("os._exit", "handle exit 5"),
        ("fork and die", "handle exit 6"),
        ("rubbish", "handle replaced wrote"),
        ("close descriptors", "handle exit 1"),
        ("huge", "2147483648 268369920"),
        ("stream raises at once", "no more numbers"),
    ],
)
def test_failures_end_their_request_with_the_cause(server: Server, case: str, cause: str) -> None:
    answer = call(server, case)
    assert answer.status_code == 424
    body = answer.json()
    assert (body["code"], body["message"]) == (424, "invoke handler failure")
    assert says(body["error"], cause)
    assert call(server, "echo", b"1").json() == 1


def test_memory_errors_are_507(server: Server) -> None:
    answer = call(server, "memory")
    assert (answer.status_code, answer.json()["error"]) == (507, "too large")


def test_a_stream_that_raises_ends_with_a_record(server: Server) -> None:
    answer = call(server, "stream raises")
    assert answer.status_code == 200
    assert answer.content.splitlines() == [
        b'{"number": 0}',
        b'{"number": 1}',
        b'{"error": "no more numbers", "code": 424}',
    ]


def test_a_stream_whose_process_dies_ends_with_a_record(server: Server) -> None:
    first, last = call(server, "stream dies").content.splitlines()
    assert first == b"good"
    assert "ended with exit status 4" in json.loads(last)["error"]


def test_a_handler_that_does_not_return_is_replaced(impatient: Server) -> None:
    before = set(impatient.code_processes())
    with ThreadPoolExecutor() as threads:
        stuck = threads.submit(call, impatient, "loop")
        impatient.wait_for_sequences(1)
        assert call(impatient, "echo", b"1").json() == 1  # by the other process
        answer = stuck.result()
    assert answer.status_code in (424, 504)  # whoever notices first
    wait_until(lambda: has_one_new(impatient, before))
    assert call(impatient, "echo", b"1").json() == 1


def has_one_new(server: Server, before: set[psutil.Process]) -> bool:
    """Whether one of the two processes has been replaced: the server knows that it has ended."""
    now = set(server.code_processes())
    return len(now) == 2 and len(now - before) == 1


def test_a_process_that_dies_while_idle_costs_no_request(server: Server) -> None:
    before = set(server.code_processes())
    assert call(server, "die later").content == b"alive"
    wait_until(lambda: has_one_new(server, before))
    assert [call(server, "echo", b"1").status_code for _ in range(4)] == [200] * 4


def test_a_fork_that_returns_does_not_answer_twice(server: Server) -> None:
    assert call(server, "fork").content in (b"parent", b"child")
    assert call(server, "echo", b"1").json() == 1


def test_what_a_process_leaves_behind_is_killed(server: Server, tmp_path: Path) -> None:
    assert call(server, "leave a process", str(tmp_path / "pid")).status_code == 424
    left = int((tmp_path / "pid").read_text())
    wait_until(lambda: has_ended(left))


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_code_may_use_processes_of_its_own(server: Server, method: str) -> None:
    assert call(server, method, b"[]", params={"workers": "2"}).json() == [0, 1, 4, 9]


def test_a_thread_that_is_left_keeps_no_process(server: Server) -> None:
    assert call(server, "leave a thread").content == b"left"
    assert "ended with exit status 5" in call(server, "os._exit").json()["error"]
    assert [call(server, "echo", b"1").json() for _ in range(4)] == [1] * 4


def test_a_program_that_is_left_ends_with_its_process(server: Server) -> None:
    program = psutil.Process(int(call(server, "leave a program").content))
    parent = program.parent()
    assert parent is not None
    parent.kill()
    wait_until(lambda: has_ended(program.pid))


def test_signal_handlers_keep_no_process(impatient: Server) -> None:
    assert call(impatient, "signals").status_code == 504
    assert [call(impatient, "echo", b"1").json() for _ in range(4)] == [1] * 4


def test_replaced_sockets_are_only_the_codes_own(server: Server) -> None:
    assert [call(server, "replace sockets").content for _ in range(4)] == [b"replaced"] * 4
    assert [call(server, "echo", b"1").json() for _ in range(4)] == [1] * 4


def test_a_stream_with_a_part_that_is_too_large_ends_with_a_record(server: Server) -> None:
    answer = call(server, "huge stream")
    assert answer.content.startswith(b'small{"error": "handle returned 2147483648 bytes at once')


def test_prints_go_to_the_log(server: Server) -> None:
    assert call(server, "print").content == b"quiet"
    wait_until(lambda: "printed by the handler" in server.log and "written by the handler" in server.log)


def test_every_call_runs_in_the_models_folder(server: Server) -> None:
    assert {call(server, "directory").content for _ in range(4)} == {str(server.directory).encode()}


def test_the_code_sees_neither_our_arguments_nor_our_input(server: Server) -> None:
    arguments, after_the_model, given = call(server, "argv").json()
    assert (arguments, given) == ([str(server.directory / "model.py")], "")
    assert [Path(path).name for path in after_the_model] == ["compat"], "installed packages come first"


def test_finalize_runs_after_the_answer(server: Server, tmp_path: Path) -> None:
    assert call(server, "finalize", str(tmp_path / "f")).content == b"done"
    wait_until((tmp_path / "f").exists)


def test_header_values_cannot_smuggle_headers(server: Server) -> None:
    answer = call(server, "header")
    assert answer.headers["X-Bad"] == "a??Set-Cookie: b"
    assert (answer.content, answer.headers["Content-Length"], "Set-Cookie" in answer.headers) == (b"x", "1", False)


def test_a_client_that_leaves_ends_its_stream(server: Server, tmp_path: Path) -> None:
    with call(server, "stream for ever", str(tmp_path / "closed"), stream=True) as answer:
        assert next(answer.iter_lines()) == b"tick"
    wait_until((tmp_path / "closed").exists)
    assert server.log_entry(answer.headers["x-request-id"])["error"].startswith("ClientDisconnected")


def test_a_stream_ends_at_its_deadline_with_a_record(impatient: Server, tmp_path: Path) -> None:
    answer = call(impatient, "stream for ever", str(tmp_path / "closed"))
    *ticks, last = answer.content.splitlines()
    assert set(ticks) == {b"tick"}
    assert says(json.loads(last)["error"].replace("option.", ""), "not within predict_timeout")


def test_too_large_bodies_and_other_names_are_refused(server: Server) -> None:
    assert call(server, "echo", b"1" * 100_001).status_code == 413
    assert call(server, "echo", path="/predictions/other").status_code == 404
    assert call(server, "echo", params={"model_name": "other"}).json()["type"] == "ModelNotFoundException"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/generate", "/v1/models", "/complete"])
def test_apis_for_generation_are_not_offered(server: Server, path: str) -> None:
    answer = requests.post(server.url + path, json={}, timeout=60)
    assert answer.status_code == 404
    assert says(answer.text, "own code POST /invocations")


def test_ping_metrics_and_the_document(server: Server) -> None:
    assert server.ping().json() == {"m": {"status": "Healthy"}}
    page = requests.get(f"{server.url}/metrics", timeout=60).text
    assert "tgi_request_count" in page
    paths = requests.get(f"{server.url}/openapi.json", timeout=60).json()["paths"]
    assert {"/ping", "/metrics", "/invocations", "/models/{model}/invoke"} <= set(paths)
    assert "/generate" not in paths


def test_the_log_has_the_request_and_the_authors_frames_only(server: Server) -> None:
    request_id = "frames-1"
    call(server, "raise", headers={"x-request-id": request_id})
    wait_until(lambda: server.log.count(request_id) == 2)
    failed, request = (json.loads(line) for line in server.log.splitlines() if request_id in line)
    assert "model.py" in failed["exception"]
    assert "custom_code/handler.py" not in failed["exception"]
    assert (request["status"], request["error"]) == (424, "RequestFailed: a good reason")


def test_boto3_whole_and_streamed(server: Server) -> None:
    runtime: Any = boto3.client(
        "sagemaker-runtime",
        endpoint_url=server.url,
        region_name="us-east-1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
        config=Config(retries={"max_attempts": 0}),
    )
    arguments = {"EndpointName": "m", "ContentType": "application/json"}
    whole = runtime.invoke_endpoint(Body=b'{"a": 1}', CustomAttributes="echo", **arguments)
    assert json.loads(whole["Body"].read()) == {"a": 1}
    stream = runtime.invoke_endpoint_with_response_stream(Body=b"{}", CustomAttributes="stream", **arguments)
    parts = [event["PayloadPart"]["Bytes"] for event in stream["Body"]]
    assert parts == [b'{"number": %d}\n' % number for number in range(3)]
    with pytest.raises(ClientError, match="a good reason"):
        runtime.invoke_endpoint(Body=b"{}", CustomAttributes="raise", **arguments)


def test_web_workers_do_not_import_the_code(server: Server) -> None:
    pids = {int(call(server, "pid").content) for _ in range(20)}
    assert pids <= {process.pid for process in server.code_processes()}
    assert not pids & {worker.pid for worker in server.web_workers()}
