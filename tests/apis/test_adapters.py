"""Adapters that come and go while a server runs, over the routes of DJL, SageMaker and vLLM, on two web workers."""

from __future__ import annotations

import concurrent.futures
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import openai
import pytest
import requests
from facts import says
from lora import train_adapter
from s3_server import S3Server
from serving import Server, StartServer
from waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

BODY = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 12, "details": True, "ignore_eos_token": True}}
NAMES = ("english", "legal", "short")


@pytest.fixture(scope="module")
def store(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import transformers

    folder = tmp_path_factory.mktemp("store")
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_llama)
    for seed, name in enumerate(NAMES):
        train_adapter(model, folder / name, seed, r=2 + seed, lora_alpha=32, target_modules="all-linear")
    return folder


@pytest.fixture(scope="module")
def s3(store: Path) -> Iterator[S3Server]:
    """A store with the adapters below `s3://bucket/adapters/`."""
    server = S3Server()
    files = {f"adapters/{path.relative_to(store)}": path.read_bytes() for path in store.glob("*/adapter_*")}
    server.put("bucket", files)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def server(tiny_llama: Path, store: Path, s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two engines and two web workers. The model has one adapter, as an archive."""
    model_dir = tmp_path_factory.mktemp("adapted") / "m"
    shutil.make_archive(str(model_dir / "adapters" / "first"), "gztar", store / "english")
    properties = (
        f"option.model_id={tiny_llama}\noption.rolling_batch=scheduler\noption.dtype=fp32\noption.enable_lora=true\n"
        f"option.web_workers=2\nminWorkers=2\noption.adapter_store={store}, {model_dir}, s3://bucket/adapters/\noption.max_loras=3\n"
        "option.allow_runtime_lora_updating=true\n"
    )
    server = Server(model_dir, properties, environ=s3.environ | {"LMI_CACHE_DIR": str(model_dir.parent / "cache")})
    yield server.wait_ready()
    server.stop()


def answer(server: Server, adapter: str = "", **headers: str) -> str:
    response = server.invoke(BODY | {"adapters": adapter}, headers=headers)
    assert response.status_code == 200, response.text
    text: str = response.json()["generated_text"]
    return text


def refusal(server: Server, adapter: str) -> str:
    response = server.invoke(BODY | {"adapters": adapter})
    assert response.status_code == 424, response.text
    error: str = response.json()["error"]
    return error


def manage(server: Server, method: str, path: str, **options: Any) -> requests.Response:
    return requests.request(method, f"{server.url}{path}", timeout=60, **options)


def names(server: Server) -> list[str]:
    return [item["name"] for item in manage(server, "GET", "/adapters").json()["adapters"]]


def kill_engine(server: Server) -> None:
    """Kill one of the engines and wait for the next one. One web worker may hear of it later than the other."""
    ready = server.log.count("engine ready")
    server.engine().kill()
    wait_until(lambda: server.log.count("engine ready") > ready, timeout=120)
    server.wait_ready()


def wait_for_line(server: Server, line: str, before: int) -> None:
    wait_until(lambda: server.log.count(line) > before)


def test_a_change_is_answered_once_every_web_worker_knows_of_it(server: Server) -> None:
    """A web worker that is paused holds up the answer, and no request after it is refused."""
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        for method, path, options, change in (
            ("POST", "/adapters", {"json": {"name": "late", "src": "legal"}}, "loaded"),
            ("DELETE", "/adapters/late", {}, "unloaded"),
        ):
            line = f'"adapter {change}"'
            before = server.log.count(line)
            paused = server.web_worker()
            paused.suspend()
            try:
                answered = thread.submit(manage, server, method, path, **options)
                wait_for_line(server, line, before)
                assert not concurrent.futures.wait([answered], timeout=1).done
            finally:
                paused.resume()
            assert answered.result(60).status_code == 200
            statuses = {server.invoke(BODY | {"adapters": "late"}).status_code for _ in range(20)}
            assert statuses == {200 if change == "loaded" else 424}


def test_adapters_come_and_go(server: Server, store: Path) -> None:
    base, first = answer(server), answer(server, "first")
    assert base != first
    registered = manage(server, "POST", "/models/m/adapters", params={"name": "a1", "src": "english", "pin": "true"})
    assert (registered.status_code, registered.text) == (200, "Adapter a1 registered")
    again = manage(server, "POST", "/adapters", json={"name": "a1", "src": "english"})
    assert (again.status_code, again.text) == (200, "Adapter a1 registered")
    # A retry joins what the same request has got before, unless the adapter is another one.
    retry = {"Idempotency-Key": "retry"}
    assert answer(server, "a1", **retry) == first
    other = manage(server, "POST", "/adapters", json={"name": "a1", "src": str(store / "legal")})
    assert other.status_code == 409
    assert says(other.json()["message"], "adapter a1 english")
    described = manage(server, "GET", "/models/m/adapters/a1").json()
    assert described == {"name": "a1", "src": "english", "pin": True, "preload": True}
    page = manage(server, "GET", "/adapters", params={"limit": 1}).json()
    assert ([item["name"] for item in page["adapters"]], page["nextPageToken"]) == (["first"], "1")
    updated = manage(server, "PUT", "/adapters/a1", json={"src": str(store / "legal")})
    assert (updated.status_code, updated.text) == (200, "Adapter a1 updated")
    legal = answer(server, "a1", **retry)
    assert legal not in (base, first)
    assert manage(server, "POST", "/adapters/a1/update", params={"src": "english"}).status_code == 200
    assert answer(server, "a1") == first
    removed = manage(server, "DELETE", "/models/m/adapters/a1")
    assert (removed.status_code, removed.text) == (200, "Adapter a1 unregistered")
    assert says(refusal(server, "a1"), "adapters: a1 first")
    for method, path in (
        ("GET", "/adapters/a1"),
        ("DELETE", "/adapters/a1"),
        ("PUT", "/adapters/a1"),
        ("GET", "/models/x/adapters"),
    ):
        assert manage(server, method, path).status_code == 404


def test_routes_with_openais_client(server: Server) -> None:
    body = {"lora_name": "sql", "lora_path": "legal"}
    loaded = manage(server, "POST", "/v1/load_lora_adapter", json=body)
    assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'sql' added successfully.")
    again = manage(server, "POST", "/v1/load_lora_adapter", json=body)
    assert again.status_code == 400
    assert "has already been loaded" in again.json()["error"]["message"]
    in_place = manage(server, "POST", "/v1/load_lora_adapter", json=body | {"lora_path": "short", "load_inplace": True})
    assert in_place.status_code == 200
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        parents = {item.id: item.model_dump().get("parent") for item in client.models.list()}
        completion = client.completions.create(model="sql", prompt="Once upon a time", max_tokens=12, temperature=0)
        base = client.completions.create(model="m", prompt="Once upon a time", max_tokens=12, temperature=0)
    assert parents["sql"] == parents["first"] is not None
    assert completion.choices[0].text != base.choices[0].text
    unloaded = manage(server, "POST", "/v1/unload_lora_adapter", json={"lora_name": "sql"})
    assert (unloaded.status_code, unloaded.text) == (200, "Success: LoRA adapter 'sql' removed successfully.")
    assert manage(server, "POST", "/v1/unload_lora_adapter", json={"lora_name": "sql"}).status_code == 404


def test_requests_name_adapters_everywhere(server: Server) -> None:
    first = answer(server, "first")
    assert server.invoke(BODY, params={"adapter": "first"}).json()["generated_text"] == first
    header = {"X-Amzn-SageMaker-Adapter-Identifier": "first"}
    assert server.invoke(BODY, headers=header).json()["generated_text"] == first
    tgi = {"inputs": BODY["inputs"], "parameters": {"adapter_id": "first", "max_new_tokens": 12}}
    assert requests.post(f"{server.url}/generate", json=tgi, timeout=60).json()["generated_text"] == first
    for path, body, status in (
        ("/invocations", BODY | {"adapters": "nobody"}, 424),
        ("/invocations?adapter=nobody", BODY, 424),
        ("/generate", {"inputs": "x", "parameters": {"adapter_id": "nobody"}}, 422),
    ):
        refused = requests.post(f"{server.url}{path}", json=body, timeout=60)
        assert (refused.status_code, "loaded adapters: first" in refused.text) == (status, True), refused.text


def test_engine_that_is_killed_has_its_adapters_again(server: Server, store: Path, tmp_path: Path) -> None:
    """What was registered, unloaded and replaced survives. One whose files are gone does not, and the log says so."""
    first = answer(server, "first")
    gone = shutil.copytree(store / "short", store / "gone")
    for name, src in (("kept", "legal"), ("lost", "gone")):
        assert manage(server, "POST", "/adapters", json={"name": name, "src": src}).status_code == 200
    assert manage(server, "PUT", "/adapters/first", json={"src": "short"}).status_code == 200
    kept, replaced = answer(server, "kept"), answer(server, "first")
    assert len({first, kept, replaced}) == 3
    shutil.rmtree(gone)
    kill_engine(server)
    assert (answer(server, "kept"), answer(server, "first")) == (kept, replaced)
    assert names(server) == ["first", "kept"]
    assert "adapter is no longer loaded" in server.log
    assert manage(server, "DELETE", "/adapters/first").status_code == 200
    kill_engine(server)
    assert names(server) == ["kept"]
    assert manage(server, "POST", "/adapters", json={"name": "first", "src": "english"}).status_code == 200
    assert manage(server, "DELETE", "/adapters/kept").status_code == 200
    assert answer(server, "first") == first


def test_adapters_from_three_sources_are_on_both_engines_again(server: Server, s3: S3Server, store: Path) -> None:
    """One engine is killed while S3 does not answer."""
    archive = shutil.make_archive(str(store / "archived"), "gztar", store, "short")
    sources = {"in-s3": "s3://bucket/adapters/legal/", "archived": archive, "folder": "english"}
    expected = {}
    for name, source in sources.items():
        registered = manage(server, "POST", "/adapters", json={"name": name, "src": source})
        assert registered.status_code == 200, registered.text
        expected[name] = answer(server, name)
    assert len({answer(server), *expected.values()}) == 4
    with s3.proxy.breaking("500"):
        kill_engine(server)
        with concurrent.futures.ThreadPoolExecutor(12) as pool:  # more than one engine answers
            wanted = [*sources] * 8
            assert [*pool.map(lambda name: answer(server, name), wanted)] == [expected[name] for name in wanted]
    assert "adapter is no" not in server.log[server.log.rindex("engine ready") :]
    described = manage(server, "GET", "/adapters/in-s3").json()
    assert described == {"name": "in-s3", "src": sources["in-s3"], "pin": False, "preload": True}
    for name in sources:
        assert manage(server, "DELETE", f"/adapters/{name}").status_code == 200


def test_load_that_takes_longer_than_predict_timeout_goes_on(
    tiny_llama: Path, s3: S3Server, start_server: StartServer, tmp_path: Path
) -> None:
    properties = (
        f"option.model_id={tiny_llama}\noption.rolling_batch=scheduler\noption.enable_lora=true\nminWorkers=2\n"
        "option.predict_timeout=3\noption.adapter_store=s3://bucket/adapters/\n"
    )
    server = start_server(properties, environ=s3.environ | {"LMI_CACHE_DIR": str(tmp_path / "cache")})
    going_on = threading.Event()

    def pause(method: str, path: str) -> None:
        if method == "GET" and "legal" in path:
            going_on.wait(60)

    s3.proxy.before = pause
    body = {"name": "late", "src": "s3://bucket/adapters/legal"}
    try:
        for _ in range(2):
            late = manage(server, "POST", "/adapters", json=body)
            assert late.status_code == 504
            assert says(late.json()["message"], "late unless log")
            assert names(server) == []
            assert server.invoke(BODY).status_code == 200
    finally:
        going_on.set()
        s3.proxy.before = lambda method, path: None
    wait_until(lambda: names(server) == ["late"], timeout=60)
    assert manage(server, "POST", "/adapters", json=body).status_code == 200
    assert names(server) == ["late"]
    assert answer(server, "late") != answer(server)


def test_unloading_lets_requests_finish(server: Server) -> None:
    """Adapters are loaded and unloaded under load. No request for one that is there fails."""
    alone = {name: answer(server, name) for name in ("", "first")}
    assert manage(server, "POST", "/adapters", json={"name": "busy", "src": "legal"}).status_code == 200
    long = {"inputs": "Once", "parameters": {"max_new_tokens": 800, "ignore_eos_token": True}, "adapters": "busy"}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        running = [pool.submit(server.invoke, long) for _ in range(3)]
        server.wait_for_sequences(running=3)
        others = [pool.submit(answer, server, name) for name in ("", "first") * 4]
        assert manage(server, "DELETE", "/adapters/busy").status_code == 200
        assert server.invoke(long).status_code == 424
        for number in range(3):
            loaded = [
                pool.submit(manage, server, "POST", "/adapters", json={"name": f"n{number}", "src": "short"})
                for _ in range(2)  # two loads of one name at once
            ]
            assert [load.result().status_code for load in loaded] == [200, 200]
            assert manage(server, "DELETE", f"/adapters/n{number}").status_code == 200
        assert [request.result().status_code for request in running] == [200] * 3
        assert [other.result() for other in others] == [alone[name] for name in ("", "first") * 4]


@pytest.mark.parametrize(
    "name", ["..", ".", "../x", "a/b", "a\0b", "", "x" * 10_000, ".hidden", "m", "näme", "a b", "a%2Fb", "a\nb"]
)
def test_hostile_names(server: Server, name: str) -> None:
    for options in ({"json": {"name": name, "src": "legal"}}, {"params": {"name": name[:5000], "src": "legal"}}):
        refused = manage(server, "POST", "/adapters", **options)
        assert refused.status_code == 400, refused.text
        assert len(refused.text) < 400
    quoted = quote(name, safe="")
    if quoted.strip("."):  # clients resolve dots themselves
        assert manage(server, "DELETE", f"/adapters/{quoted}").status_code in (404, 405, 414)
    assert names(server) == ["first"]


def test_sources_outside_the_store_and_broken_ones(server: Server, store: Path, tmp_path: Path) -> None:
    """Nothing is left behind by a load that fails. The answer and the log have the cause on one line."""
    shutil.copytree(store / "legal", tmp_path / "outside")
    (store / "link").symlink_to(tmp_path / "outside")
    linked = shutil.copytree(store / "legal", store / "linked")
    (linked / "adapter_model.safetensors").unlink()
    (linked / "adapter_model.safetensors").symlink_to(tmp_path / "outside" / "adapter_model.safetensors")
    (store / "circle").symlink_to(store / "circle")
    (store / "empty").mkdir()
    cut = shutil.copytree(store / "legal", store / "cut")
    os.truncate(cut / "adapter_model.safetensors", 500)
    high = shutil.copytree(store / "legal", store / "dora")
    config = json.loads((high / "adapter_config.json").read_text())
    (high / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True}))
    other_rank = shutil.copytree(store / "legal", store / "other-rank")
    (other_rank / "adapter_config.json").write_text(json.dumps(config | {"r": 2}))
    formats = shutil.copytree(store / "legal", store / "formats")
    (formats / "model.py").write_text(
        "from djl_python.output_formatter import output_formatter\n\n@output_formatter\ndef f(output):\n    return ''\n"
    )
    for source, cause in (
        ("formats", "the adapter has formatters in model.py, which are read when the server starts"),
        (str(tmp_path / "outside"), "is outside of option.adapter_store"),
        ("link", "is outside of option.adapter_store"),
        ("linked", "is outside of option.adapter_store"),
        ("../../../etc", "is outside of option.adapter_store"),
        ("file:///etc", "is outside of option.adapter_store"),
        ("circle", "is not a folder that can be read"),
        ("nothing", "is not a folder that can be read"),
        ("empty", "is not an adapter: it has no adapter_config.json"),
        ("https://example.com/adapter", "must be a folder or an archive of this machine, or in S3"),
        ("s3://elsewhere/adapters/legal", "is outside of option.adapter_store"),
        ("x\0y", "must be a folder or an archive of this machine"),
        ("x" * 100_000, "must be a folder or an archive of this machine"),
        ("cut", "is cut off: it has 500 bytes, and its header says "),
        ("dora", "adapter 'broken' cannot be served: use_dora is not supported"),
        ("other-rank", "'other-rank' cannot be served: lora_A and lora_B of "),
    ):
        refused = manage(server, "POST", "/adapters", json={"name": "broken", "src": source})
        assert refused.status_code == 400, (source[:50], refused.text)
        message = refused.json()["message"]
        assert cause in message
        assert "\n" not in message
        assert len(message) < 400
        assert json.dumps(message)[1:-1] in server.log
    assert names(server) == ["first"]
    assert answer(server, "first") != answer(server)


def test_bodies_that_are_wrong(server: Server) -> None:
    for options in (
        {"data": b"{", "headers": {"Content-Type": "application/json"}},
        {"json": ["a"]},
        {"json": {"name": "a"}},
        {"json": {"name": 1, "src": "legal"}},
        {"json": {"name": "a", "src": "legal", "pin": "perhaps"}},
        {},
    ):
        assert manage(server, "POST", "/adapters", **options).status_code == 400
    assert manage(server, "POST", "/adapters", data=b"name=a").status_code == 415
    assert manage(server, "POST", "/adapters", json={}, headers={"Origin": "https://example.com"}).status_code == 403
    assert manage(server, "DELETE", "/adapters/first", headers={"Origin": "https://example.com"}).status_code == 403
