"""Several models on one server: which one answers, and loading and unloading them while others serve."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
from facts import says
from model_store import ECHO, StoreServer
from waiting import still_running, wait_until

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    models = {"a": ECHO, "b": ECHO + "option.max_model_len=64\n", "c": ECHO}
    server = StoreServer(tmp_path_factory.mktemp("models"), models)
    (server.store / "not-a-model").mkdir()
    yield server.wait_ready()
    server.stop()


def error(code: int, kind: str, message: str) -> str:
    return json.dumps({"code": code, "type": kind, "message": message}, indent=2) + "\n"


def test_a_model_is_named_in_the_path_the_query_or_the_body(server: StoreServer) -> None:
    long = "x" * 100  # too long for b only
    for path, body in (
        ("/predictions/{}", {"inputs": long}),
        ("/predictions/{}/1", {"inputs": long}),
        ("/models/{}/invoke", {"inputs": long}),
        ("/invocations?model_name={}", {"inputs": long}),
        ("/generate?model_name={}", {"inputs": long}),
        ("/v1/completions", {"prompt": long}),
        ("/invocations", {"prompt": long}),
    ):
        named = "{}" in path
        for model in ("a", "b"):
            answer = server.invoke(body if named else body | {"model": model}, path=path.format(model))
            assert (answer.status_code == 200) is (model == "a"), (path, answer.text)


def test_requests_that_name_no_model_or_an_unknown_one_are_refused(server: StoreServer) -> None:
    unknown = server.generate("zz")
    assert (unknown.status_code, unknown.text) == (
        404,
        error(404, "ModelNotFoundException", "Model or workflow not found: zz"),
    )
    unnamed = server.invoke({"inputs": "hello"})
    assert unnamed.status_code == 400
    assert says(unnamed.json()["message"], "model_name required a, b, c")
    chat = server.invoke({"model": "zz", "messages": []}, path="/v1/chat/completions")
    assert (chat.status_code, chat.json()["error"]["message"]) == (404, "Model or workflow not found: zz")
    entry = server.log_entry(chat.headers["x-request-id"])
    assert (entry["model"], entry["path"], entry["status"]) == ("zz", "/v1/chat/completions", 404)
    assert entry["error"] == "ModelNotFound: Model or workflow not found: zz"


def test_management_is_logged_like_any_request(server: StoreServer) -> None:
    found = server.ask("GET", "/models/a", headers={"x-request-id": "described"})
    entry = server.log_entry("described")
    assert found.headers["x-request-id"] == "described"
    assert (entry["model"], entry["path"], entry["status"]) == ("a", "/models/a", 200)
    missing = server.ask("DELETE", "/models/zz")
    entry = server.log_entry(missing.headers["x-request-id"])
    assert (entry["model"], entry["status"], entry["error_code"]) == ("zz", 404, "model_not_found")


def test_management_reads_bodies_as_other_routes_do(server: StoreServer) -> None:
    for headers, status in ({"Content-Encoding": "gzip"}, 415), ({"X-Amzn-SageMaker-Session-Id": "NEW_SESSION"}, 400):
        answer = server.ask("POST", "/models", json={"url": "c", "model_name": "d"}, headers=headers)
        assert answer.status_code == status, answer.text
        assert says(answer.json()["message"], f"{next(iter(headers))} not supported")


def test_a_body_is_not_decoded_to_find_its_model(server: StoreServer) -> None:
    """That would block other clients. So the model that is named says what is wrong."""
    answer = server.ask("POST", "/v1/completions", data=b'{"x": {"model": "a"}, "model": "b", "prompt": ', headers=JSON)
    assert answer.status_code == 400
    assert says(answer.json()["error"]["message"], "not valid JSON"), answer.text
    assert server.log_entry(answer.headers["x-request-id"])["model"] == "b"


@pytest.mark.parametrize("content_type", [None, "application/x-www-form-urlencoded"])
def test_a_body_of_curl_names_its_model(server: StoreServer, content_type: str | None) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    body = json.dumps({"model": "b", "prompt": "hello"})
    answer = server.ask("POST", "/invocations", data=body.encode(), headers=headers)
    assert (answer.status_code, answer.json()["model"]) == (200, "b"), answer.text


def test_a_name_that_is_not_utf_8_names_no_model(server: StoreServer) -> None:
    answer = server.ask("POST", "/invocations", data=b'{"model": "\xff", "prompt": "hello"}', headers={})
    assert answer.status_code == 400, answer.text


def test_pages_name_every_model(server: StoreServer) -> None:
    assert server.ping().json() == {name: {"status": "Healthy"} for name in "abc"}
    assert [model["id"] for model in server.ask("GET", "/v1/models").json()["data"]] == ["a", "b", "c"]
    assert server.ask("GET", "/v1/models/b").json()["id"] == "b"
    page = server.ask("GET", "/metrics").text
    for name in "abc":
        assert f'tgi_request_count{{model_name="{name}",engine="0"}}' in page
        assert f'vllm:num_requests_running{{model_name="{name}",engine="0"}} 0' in page
    assert server.ask("GET", "/info?model_name=b").json()["model_id"] == "b"
    wait_until(lambda: '"model":"b"' in server.log)


def test_the_management_routes_answer_as_in_djl(server: StoreServer) -> None:
    server.add("extra")
    url = f"file://{server.store}/extra"
    loaded = server.ask("POST", f"/models?url={url}&model_name=extra&engine=Python")
    assert (loaded.status_code, loaded.text) == (200, '{\n  "status": "Model \\"extra\\" registered."\n}\n')
    assert server.generate("extra").status_code == 200
    again = server.ask("POST", f"/models?url={url}&model_name=extra")
    assert (again.status_code, again.text) == (
        409,
        error(409, "BadRequestException", "Model extra is already registered."),
    )
    first = server.ask("GET", "/models?limit=3").json()
    assert first["nextPageToken"] == "3"
    rest = server.ask("GET", "/models?next_page_token=3")
    assert server.ask("GET", f"/models?next_page_token={2**63 - 1}").json() == {"models": []}
    assert len(server.ask("GET", "/models?limit=0").json()["models"]) == 4
    item = {"modelName": "extra", "modelUrl": url, "status": "READY"}
    assert rest.text == json.dumps({"models": [item]}, indent=2) + "\n"
    (described,) = server.ask("GET", "/models/extra").json()
    assert described["workflowName"] == "extra"
    assert described["models"][0] | {"status": "READY"} == described["models"][0] | item
    dropped = server.ask("DELETE", "/models/extra")
    assert (dropped.status_code, dropped.text) == (
        200,
        '{\n  "status": "Model or workflow \\"extra\\" unregistered"\n}\n',
    )
    gone = server.ask("DELETE", "/models/extra")
    assert (gone.status_code, gone.text) == (
        404,
        error(404, "ModelNotFoundException", "Model or workflow not found: extra"),
    )
    assert server.generate("extra").status_code == 404
    assert server.generate("a").status_code == 200


def test_a_model_that_is_unloaded_finishes_what_is_in_flight(server: StoreServer) -> None:
    server.add("slow", ECHO + "option.echo_tokens_per_second=10\n")
    assert server.ask("POST", "/models?url=slow").status_code == 200
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(server.generate("slow", "0123456789" * 4, max_new_tokens=40))
    )
    thread.start()
    wait_until(
        lambda: 'vllm:num_requests_running{model_name="slow",engine="0"} 1' in server.ask("GET", "/metrics").text
    )
    assert server.ask("DELETE", "/models/slow").status_code == 200
    thread.join()
    assert answers[0].json() == {"generated_text": "0123456789" * 4}
    assert server.generate("slow").status_code == 404


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("", 400, "Parameter url required"),
        ("url=/etc&model_name=x", 404, "Invalid url: /etc not store"),
        ("url=../../..&model_name=x", 404, "Invalid url: ../../.. not store"),
        ("url=file:///nope&model_name=nope", 404, "Invalid url: /nope"),
        ("url=http://example.org/m&model_name=x", 404, "path file:// s3://"),
        ("url=s3://bucket/m/", 404, "s3://bucket/m/ store LMI_MODEL_SOURCES"),
        ("url=outside", 404, "Invalid url: outside not store"),
        ("url=a%00b&model_name=x", 404, "printable characters"),
        (f"url={'x' * 5000}&model_name=x", 404, "2048"),
        ("url=a&model_name=..%2Fx", 400, "model_name: 1 128"),
        ("url=a&model_name=..", 400, "model_name: 1 128"),
        (f"url=a&model_name={'x' * 129}", 400, "model_name: 1 128"),
        ("url=a&model_name=x&min_worker=1000", 400, "min_worker"),
        ("url=broken", 400, "unknown backend nonesuch"),
        ("url=dies", 500, "dies not loaded died 1"),
        ("url=raises", 400, "raises loaded option.echo_fault=raise_in_load"),
    ],
)
def test_a_load_that_fails_says_why_and_leaves_nothing(
    server: StoreServer, query: str, status: int, message: str
) -> None:
    if not (server.store / "outside").exists():
        (server.store / "outside").symlink_to("/usr")
        server.add("broken", "option.rolling_batch=nonesuch\n")
        server.add("raises", ECHO + "option.echo_fault=raise_in_load\n")
        server.add("dies", ECHO + "option.echo_fault=exit_in_load\noption.restart_limit=0\n")
    answer = server.ask("POST", f"/models?{query}")
    assert answer.status_code == status, answer.text
    assert says(answer.json()["message"], message)
    assert [model["modelName"] for model in server.ask("GET", "/models").json()["models"]] == ["a", "b", "c"]
    runtime = next(path.parent for path in server.temporary.glob("lmi-*/models.json"))
    assert len(list(runtime.glob("model-*"))) == 3


def test_two_loads_of_one_name(server: StoreServer) -> None:
    server.add("twice")
    answers: list[int] = []

    def load() -> None:
        answers.append(server.ask("POST", "/models", json={"url": "twice"}).status_code)

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200, 409, 409, 409]
    assert server.ask("DELETE", "/models/twice").status_code == 200


def test_a_model_sleeps_and_wakes(server: StoreServer) -> None:
    server.add("sleeper", ECHO + "option.idle_timeout=3\n")
    assert server.ask("POST", "/models?url=sleeper&synchronous=false").status_code == 202
    wait_until(lambda: server.states().get("sleeper") == "Sleeping")
    wait_until(lambda: len(server.engines()) == 3)
    assert server.generate("sleeper", "good morning").json() == {"generated_text": "good morning"}
    assert server.states()["sleeper"] == "Healthy"  # for three seconds
    assert server.ask("DELETE", "/models/sleeper").status_code == 200


def test_a_model_is_scaled_down_and_up(server: StoreServer) -> None:
    server.add("scaled")
    assert server.ask("POST", "/models?url=scaled").status_code == 200
    for query, state in (("min_worker=0", "Sleeping"), ("min_worker=0", "Sleeping"), ("min_worker=1", "Healthy")):
        assert server.ask("PUT", f"/models/scaled?{query}").status_code == 200
        assert server.states()["scaled"] == state
    engines = server.engines()
    for query in ("", "?min_worker=1"):
        assert server.ask("PUT", f"/models/scaled{query}").status_code == 200
    assert server.engines() == engines
    assert server.generate("scaled").status_code == 200
    assert server.ask("DELETE", "/models/scaled").status_code == 200
    assert "Traceback" not in server.log


def test_a_worker_that_replaces_another_serves_a_model_as_its_engine_was_started(server: StoreServer) -> None:
    (server.store / "b" / "serving.properties").write_text(ECHO + "option.no_such_batch=1\noption.max_model_len=x\n")
    workers = server.web_workers()
    for worker in workers:
        worker.kill()
    wait_until(lambda: not set(workers).intersection(server.web_workers()))
    wait_until(lambda: server.generate("b").status_code == 200)
    wait_until(lambda: says(server.generate("b", "x" * 100).text, "100 64"))  # perhaps from yet another worker


def test_a_server_ends_with_its_manager(server: StoreServer) -> None:
    """It is the last test."""
    engines = server.engines()
    assert len(engines) == 3
    server.manager().kill()
    assert server.process.wait(120) == 1
    assert still_running(engines) == []
