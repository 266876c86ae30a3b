"""A server on real vLLM: a worker process that is killed, adapters and grammars over HTTP, start-up errors."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from facts import says
from lora import write_adapter
from serving import Server, StartServer, free_port
from waiting import Watch, wait_until

pytestmark = [pytest.mark.needs("vllm"), pytest.mark.model, pytest.mark.timeout(900)]

QUICK = (
    "option.rolling_batch=vllm\noption.dtype=fp32\noption.enforce_eager=true\n"
    "option.kv_cache_memory_bytes=128M\noption.max_model_len=1024\n"
)


def worker_processes(server: Server) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):  # it has just ended
            if any("VLLM::Worker" in word for word in child.cmdline()):
                found.append(child)
    return found


def test_log_probabilities_need_no_compiler(start_server: StartServer, tiny_llama: Path, tmp_path: Path) -> None:
    """vLLM compiles a function for the first request that asks for them. Without a C++ compiler, its engine would end.

    Several workers need one for their model, too.
    """
    environ = {"CXX": str(tmp_path / "nowhere"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled")}
    server: Server = start_server(f"{QUICK}option.model_id={tiny_llama}\n", environ=environ, ready=False)
    assert says(server.wait_ready(500).log, "log probabilities not compiled")
    body = {"model": "m0", "prompt": "a", "max_tokens": 2, "logprobs": 1}
    answer = server.invoke(body, path="/v1/completions")
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["choices"][0]["logprobs"]["token_logprobs"]) == 2


TOKENS = 2000
"""Of each answer. On a busy machine, some answers may end before a worker process is killed."""


def was_cut(answer: requests.Response, *, stream: bool) -> bool:
    """Whether the worker process that was killed has ended the answer. If not, all of it must be there.

    Fails unless that is an error response with its own status, or a stream that ends with an error record.
    """
    cause = "worker process"
    if answer.status_code != 200:
        assert (answer.status_code, cause in answer.json()["error"]) == (500, True), answer.text
        return True
    assert answer.text.endswith("\n") == stream
    last = json.loads(answer.text.splitlines()[-1])
    if "error_msg" in last.get("token", ""):
        assert cause in last["token"]["error_msg"]
        return True
    assert last["details"]["generated_tokens"] == TOKENS
    return False


@pytest.mark.timeout(1200)  # two starts of three processes each
def test_killed_worker(start_server: StartServer, tiny_llama: Path) -> None:
    """Two workers share the model. One is killed under load, then an idle one of the next engine."""
    quick = QUICK.replace("max_model_len=1024", "max_model_len=2048")
    properties = f"{quick}option.model_id={tiny_llama}\noption.tensor_parallel_degree=2\n"
    server: Server = start_server(properties, environ={"VLLM_CPU_OMP_THREADS_BIND": "0|1"}, ready=False)
    first = worker_processes(server.wait_ready(500))
    assert len(first) == 2
    parameters = {"max_new_tokens": TOKENS, "ignore_eos_token": True, "details": True}
    body: dict[str, Any] = {"inputs": "hello", "parameters": parameters}
    with Watch(server) as watch, concurrent.futures.ThreadPoolExecutor(8) as pool:
        streams = [pool.submit(server.invoke, body | {"stream": True}) for _ in range(3)]
        others = [pool.submit(server.invoke, body) for _ in range(3)]
        server.wait_for_sequences(6)
        first[1].kill()
        cut = [was_cut(answer.result(), stream=True) for answer in streams]
        cut += [was_cut(answer.result(), stream=False) for answer in others]
        assert any(cut)
        wait_until(lambda: watch.statuses[-2:] == [503, 200], 500)
        assert server.invoke({"inputs": "hello"}).status_code == 200
        worker_processes(server)[0].kill()
        wait_until(lambda: watch.statuses[-2:] == [200, 503], 500)
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in first)


def test_adapters_grammars_and_priorities(start_server: StartServer, tmp_path: Path) -> None:
    model = tmp_path / "m0"
    write_adapter(model / "adapters" / "loud", 0.5)
    (model / "adapters" / ".hidden").mkdir()
    server: Server = start_server(f"{QUICK}option.enable_lora=true\n")
    body: dict[str, Any] = {"inputs": "The capital of France is", "parameters": {"max_new_tokens": 4}}

    def text(**request: Any) -> str:
        options: dict[str, Any] = {"json": body, "timeout": 120} | request
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
    assert (unknown.status_code, says(unknown.json()["error"], "adapters: nobody loud")) == (
        424,
        True,
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


def test_start_up_error_is_one_line(tmp_path: Path, tiny_llama: Path) -> None:
    """Of an engine process that ends while it loads. `test_vllm.py` has all other causes."""
    model = tmp_path / "model"
    shutil.copytree(tiny_llama, model)
    (model / "serving.properties").write_text(f"{QUICK}option.quantize=foo\n")
    port = str(free_port())
    command = [sys.executable, "-m", "lmi_handlers.commands.cli", "serve", "--model-dir", str(model), "--port", port]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=800, cwd=model)
    assert ended.returncode not in (0, None)
    errors = [line for line in ended.stderr.splitlines() if line.startswith("lmi: error: ")]
    assert len(errors) == 1
    assert errors[0].startswith("lmi: error: option.quantize has value 'foo': vLLM supports awq, ")
    assert "Traceback" not in ended.stderr
