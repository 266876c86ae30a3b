"""A server on real vLLM: a worker process that is killed, adapters and grammars over HTTP."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from facts import says
from serving import Server, StartServer
from waiting import Watch, still_running, wait_until

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


def test_log_probabilities_need_no_compiler(tiny_vllm_server: Server) -> None:
    """vLLM compiles a function for the first request that asks for them. Without a C++ compiler, its engine would end.

    Several workers need one for their model, too.
    """
    assert says(tiny_vllm_server.log, "log probabilities not compiled")
    body = {"model": tiny_vllm_server.name, "prompt": "a", "max_tokens": 2, "logprobs": 1}
    answer = tiny_vllm_server.invoke(body, path="/v1/completions")
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


def test_killed_worker(start_server: StartServer, tiny_llama: Path) -> None:
    """Two workers share the model. One is killed under load; an idle one is watched by the same thread.

    The next engine is not waited for. Of another executor, it is: see `test_vllm_nodes.py`.
    """
    quick = QUICK.replace("max_model_len=1024", "max_model_len=2048")
    properties = f"{quick}option.model_id={tiny_llama}\noption.tensor_parallel_degree=2\n"
    server: Server = start_server(properties, environ={"VLLM_CPU_OMP_THREADS_BIND": "0|1"}, ready=False)
    workers = worker_processes(server.wait_ready(500))
    assert len(workers) == 2
    parameters = {"max_new_tokens": TOKENS, "ignore_eos_token": True, "details": True}
    body: dict[str, Any] = {"inputs": "hello", "parameters": parameters}
    with Watch(server) as watch, concurrent.futures.ThreadPoolExecutor(8) as pool:
        streams = [pool.submit(server.invoke, body | {"stream": True}) for _ in range(3)]
        others = [pool.submit(server.invoke, body) for _ in range(3)]
        server.wait_for_sequences(6)
        engine = server.engine()
        workers[1].kill()
        cut = [was_cut(answer.result(), stream=True) for answer in streams]
        cut += [was_cut(answer.result(), stream=False) for answer in others]
        assert any(cut)
        wait_until(lambda: watch.statuses[-2:] == [200, 503], 60)
    assert not still_running([engine, *workers])


def test_adapters_grammars_and_priorities(tiny_vllm_server: Server) -> None:
    server = tiny_vllm_server
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

    schema = {"type": "boolean"}  # of whose texts none is long
    for name, value in (("guided_json", schema), ("structured_outputs", {"json": schema})):
        asked = {"inputs": "JSON: ", "parameters": {"max_new_tokens": 40, name: value}}
        assert server.invoke(asked).json()["generated_text"] in ("true", "false")
    choice = {"inputs": "x", "parameters": {"guided_choice": ["red", "blue"], "priority": 1}}
    assert server.invoke(choice).json()["generated_text"] in ("red", "blue")
    bad = server.invoke({"inputs": "x", "parameters": {"guided_regex": "(["}})
    assert bad.status_code == 424
    assert server.invoke({"inputs": "x", "parameters": {"guided_regex": "a", "guided_grammar": "b"}}).status_code == 424
