"""A server on real vLLM: a worker process that is killed, adapters and grammars over HTTP, start-up errors."""

from __future__ import annotations

import concurrent.futures
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from lora import write_adapter
from serving import Server, StartServer, free_port
from waiting import Watch, wait_until

pytestmark = [pytest.mark.needs("vllm"), pytest.mark.model]

QUICK = (
    "option.rolling_batch=vllm\noption.dtype=fp32\noption.enforce_eager=true\n"
    "option.kv_cache_memory_bytes=128M\noption.max_model_len=1024\n"
)


def worker_processes(server: Server) -> list[psutil.Process]:
    children = psutil.Process(server.process.pid).children(recursive=True)
    return [child for child in children if any("VLLM::Worker" in word for word in child.cmdline())]


def is_well_formed(answer: requests.Response, *, stream: bool) -> bool:
    """Whether the failure is an error response with its own status, or a stream that ends with an error record."""
    cause = "worker process"
    if answer.status_code != 200:
        return answer.status_code == 500 and cause in answer.json()["error"]
    record = json.loads(answer.text.splitlines()[-1])
    return stream and answer.text.endswith("\n") and cause in record["token"]["error_msg"]


@pytest.mark.timeout(900)  # three starts of three processes each
def test_killed_worker(start_server: StartServer, tiny_llama: Path) -> None:
    """Two workers share the model. One is killed under load, then an idle one of the next engine."""
    properties = f"{QUICK}option.model_id={tiny_llama}\noption.tensor_parallel_degree=2\n"
    server: Server = start_server(properties, environ={"VLLM_CPU_OMP_THREADS_BIND": "0|1"})
    assert len(worker_processes(server)) == 2
    body: dict[str, Any] = {"inputs": "hello", "parameters": {"max_new_tokens": 900, "ignore_eos_token": True}}
    with Watch(server) as watch, concurrent.futures.ThreadPoolExecutor(8) as pool:
        streams = [pool.submit(server.invoke, body | {"stream": True}) for _ in range(3)]
        others = [pool.submit(server.invoke, body) for _ in range(3)]
        time.sleep(1)
        assert not any(answer.done() for answer in streams + others)
        first = worker_processes(server)
        first[1].kill()
        assert all(is_well_formed(answer.result(), stream=True) for answer in streams)
        assert all(is_well_formed(answer.result(), stream=False) for answer in others)
        wait_until(lambda: watch.answers[-1].status_code == 503)
        server.wait_ready(240)
        assert server.invoke({"inputs": "hello"}).status_code == 200
        worker_processes(server)[0].kill()
        wait_until(lambda: watch.statuses[-1] == 503)
        server.wait_ready(240)
    assert watch.statuses == [200, 503, 200, 503, 200]
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in first)


def test_adapters_grammars_and_priorities(start_server: StartServer, tmp_path: Path) -> None:
    model = tmp_path / "m0"
    write_adapter(model / "adapters" / "loud", 0.5)
    (model / "adapters" / ".hidden").mkdir()
    server: Server = start_server(f"{QUICK}option.enable_lora=true\n")
    body: dict[str, Any] = {"inputs": "The capital of France is", "parameters": {"max_new_tokens": 4}}

    def text(**request: Any) -> str:
        options: dict[str, Any] = {"json": body, "timeout": 60} | request
        answer = requests.post(f"{server.url}/invocations", **options)
        assert answer.status_code == 200, answer.text
        generated: str = answer.json()["generated_text"]
        return generated

    base, loud = text(), text(json=body | {"adapters": "loud"})
    assert base != loud
    assert text(headers={"X-Amzn-SageMaker-Adapter-Identifier": "loud"}) == loud
    assert text(params={"adapter": "loud"}) == loud
    assert text(json=body | {"adapters": ""}, params={"adapter": "loud"}) == base
    pair = server.invoke(body | {"inputs": [body["inputs"]] * 2, "adapters": ["loud", ""]}).json()
    assert [item["generated_text"] for item in pair] == [loud, base]
    unknown = server.invoke(body | {"adapters": "nobody"})
    assert (unknown.status_code, unknown.json()["error"]) == (
        424,
        "adapters: adapter 'nobody' is not loaded; loaded adapters: loud",
    )

    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    for name, value, expected in (
        ("guided_json", schema, {"ok"}),
        ("structured_outputs", {"json": schema}, {"ok"}),
    ):
        asked = {"inputs": "JSON: ", "parameters": {"max_new_tokens": 40, name: value}}
        assert set(json.loads(server.invoke(asked).json()["generated_text"])) >= expected
    choice = {"inputs": "x", "parameters": {"guided_choice": ["red", "blue"], "priority": 1}}
    assert server.invoke(choice).json()["generated_text"] in ("red", "blue")
    bad = server.invoke({"inputs": "x", "parameters": {"guided_regex": "(["}})
    assert bad.status_code == 424
    assert server.invoke({"inputs": "x", "parameters": {"guided_regex": "a", "guided_grammar": "b"}}).status_code == 424


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ("option.max_num_sqs=3\n", "option.max_num_sqs: neither this server nor vLLM has this option"),
        ("option.quantize=foo\n", "option.quantize: vLLM cannot serve"),
        ("option.enable_lora=true\n", "option.enable_lora: "),
    ],
)
def test_start_up_error_is_one_line(tmp_path: Path, tiny_llama: Path, properties: str, words: str) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_llama, model)
    if "enable_lora" in properties:
        (model / "adapters" / "empty").mkdir(parents=True)
    (model / "serving.properties").write_text(f"{QUICK}{properties}")
    port = str(free_port())
    command = [sys.executable, "-m", "lmi_handlers.cli", "serve", "--model-dir", str(model), "--port", port]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=model)
    assert ended.returncode not in (0, None)
    errors = [line for line in ended.stderr.splitlines() if line.startswith("lmi: error: ")]
    assert len(errors) == 1
    assert errors[0].startswith(f"lmi: error: {words}")
    assert "Traceback" not in ended.stderr


def test_check_uses_vllms_own_validation(tmp_path: Path) -> None:
    def check(text: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "serving.properties").write_text(f"option.rolling_batch=vllm\n{text}")
        command = [sys.executable, "-m", "lmi_handlers.cli", "check", "--model-dir", str(tmp_path)]
        command += ["--port", str(free_port())]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    good = check("option.block_size=32\n")
    assert good.returncode == 0, good.stderr
    assert "passed on to vllm" in good.stdout
    bad = check("option.blok_size=32\n")
    assert bad.returncode == 1
    assert (
        "option.blok_size: neither this server nor vLLM has this option; did you mean option.block_size?" in bad.stderr
    )
