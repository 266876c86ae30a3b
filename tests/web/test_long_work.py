"""Requests that need long work: other clients do not wait for them, and they are rejected early if possible."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from facts import says
from neighbours import Neighbours
from raw_http import connect, head, read_to_end
from serving import Server
from waiting import wait_until

MOST_MIB = 250
"""Maximum growth of the web worker."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One web worker on the echo backend, with a context of a million tokens of one byte each."""
    properties = "option.rolling_batch=echo\noption.echo_tokens_per_second=50\noption.max_prompt_logprobs=200000\n"
    server = Server(tmp_path_factory.mktemp("long") / "m", properties, "--workers", "1")
    yield server.wait_ready()
    server.stop()


def chat(messages: int) -> dict[str, Any]:
    roles = ("user", "assistant")
    history = [{"role": roles[turn % 2], "content": "hello " * 80} for turn in range(messages)]
    return {"messages": history, "max_tokens": 1}


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        pytest.param("/invocations", {"inputs": "a b " * 500_000}, 424, id="far too long"),
        pytest.param("/invocations", {"inputs": "a b " * 260_000, "parameters": {"max_new_tokens": 1}}, 200, id="long"),
        pytest.param("/generate", {"inputs": "a b " * 1_000_000, "parameters": {"truncate": 9}}, 200, id="truncated"),
        pytest.param(
            "/invocations",
            {"inputs": "a b " * 1_000_000, "parameters": {"truncate": 2_000_000_000}},
            424,
            id="truncated to more than fits",
        ),
        pytest.param("/tokenize", {"inputs": "a b " * 150_000}, 200, id="tokenize"),
        pytest.param("/v1/chat/completions", chat(1999), 200, id="chat"),
        pytest.param(
            "/v1/completions",
            {"prompt": "a b " * 2_300, "echo": True, "logprobs": 20, "max_tokens": 1},
            200,
            id="log probabilities",
        ),
        pytest.param(
            "/v1/completions",
            {"prompt": "a b " * 50_000, "echo": True, "logprobs": 20, "max_tokens": 1},
            400,
            id="too many log probabilities",
        ),
        pytest.param(
            "/invocations",
            {
                "inputs": "x",
                "parameters": {"n": 128, "stop": [f"{number:06}" * 5 for number in range(1000)], "max_new_tokens": 1},
            },
            200,
            id="stop strings",
        ),
    ],
)
def test_long_work_does_not_delay_other_clients(path: str, body: dict[str, Any], expected: int, server: Server) -> None:
    """On the event loop, these requests would block other clients for 2.5 to 50 seconds. In threads, for less than 0.1 s."""
    with Neighbours(server) as neighbours:
        answer = server.invoke(body, path=path)
    assert answer.status_code == expected, answer.text[:200]
    assert neighbours.grown_mib < MOST_MIB


def test_a_body_with_a_chunk_for_each_byte_does_not_delay_other_clients(server: Server) -> None:
    """A chunk costs the same, whatever it holds. At the full speed of a client, this would block others for seconds."""
    with Neighbours(server), connect(server, head("/invocations", "Transfer-Encoding: chunked")) as sock:
        sock.sendall(b"1\r\n \r\n" * 500_000 + b"0\r\n\r\n")
        assert sock.recv(1024).startswith(b"HTTP/1.1 424 ")


def test_requests_that_come_before_the_last_answer_do_not_delay_other_clients(server: Server) -> None:
    """Nobody ever waits for such a client, so its requests would be answered one after another, and no others."""
    ping = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n"
    with Neighbours(server), connect(server) as sock:
        early = threading.Thread(
            target=sock.sendall, args=((ping + b"\r\n") * 30_000 + ping + b"Connection: close\r\n\r\n",)
        )
        early.start()
        answers = read_to_end(sock)
        early.join()
    assert answers.count(b"HTTP/1.1 200 OK") == 30_001


def test_the_rest_of_a_body_that_nobody_reads_does_not_delay_other_clients(server: Server) -> None:
    """It is dropped for as long as it arrives, for up to 30 seconds."""
    with Neighbours(server), connect(server, head("/nowhere", f"Content-Length: {1 << 40}")) as sock:
        ends = time.monotonic() + 6
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < ends:
                sock.sendall(bytes(1 << 20))
        assert sock.recv(1024).startswith(b"HTTP/1.1 404 ")


def test_rejection_names_the_limit(server: Server) -> None:
    long = server.invoke({"inputs": "a b " * 500_000})
    assert says(long.json()["error"], "1048575 tokens")
    values = server.invoke({"prompt": "a" * 100_001, "echo": True, "logprobs": 1}, path="/v1/completions")
    assert values.status_code == 400
    assert says(values.json()["error"]["message"], "logprobs: 200002 100001 200000 option.max_prompt_logprobs")
    asked = {"prompt": "a" * 2000, "n": 128, "max_tokens": 1, "return_token_ids": True}
    ids = server.invoke(asked, path="/v1/completions")
    assert ids.status_code == 400
    assert ids.json()["error"]["param"] == "return_token_ids"
    assert says(ids.json()["error"]["message"], "ids 256000 200000")
    assert server.invoke(asked | {"n": 2}, path="/v1/completions").status_code == 200
    full = {"truncate": 8, "n": 100, "max_new_tokens": 1, "return_full_text": True}
    texts = server.invoke({"inputs": "a" * 200_000, "parameters": full})
    assert texts.status_code == 424
    assert says(texts.json()["error"], "inputs 200000 100 option.max_text_bytes")
    echoed = {"prompt": "a" * 200_000, "n": 100, "max_tokens": 1, "echo": True, "truncate_prompt_tokens": 8}
    texts = server.invoke(echoed, path="/v1/completions")
    assert texts.status_code == 400
    assert says(texts.json()["error"]["message"], "prompt 200000 100 option.max_text_bytes")
    of_ids = {"prompt": [97] * 200_000, "n": 100, "max_tokens": 1, "echo": True}
    texts = server.invoke(of_ids, path="/v1/completions")
    assert texts.status_code == 400
    assert says(texts.json()["error"]["message"], "prompt 200000 100 option.max_text_bytes")
    completed = {"model": "m", "prompt": "a" * 200_000, "n": 100, "maximum_tokens": 1, "echo": True}
    texts = server.invoke(completed, path="/complete")
    assert texts.status_code == 400
    assert says(texts.text, "prompt 200000 100 option.max_text_bytes")
    question = {"route": "/v1/completions", "body": {"prompt": ["a" * 100_000, "a" * 100_001], "max_tokens": 1}}
    explained = server.invoke(question, path="/explain")
    assert explained.status_code == 400
    assert explained.json()["error"]["param"] == "prompt"
    assert says(explained.json()["error"]["message"], "ids 200001 200000")


def test_truncation_keeps_the_end_of_the_text(server: Server) -> None:
    body = {"inputs": "a b " * 900_000 + "the very end", "parameters": {"truncate": 8, "max_new_tokens": 8}}
    assert server.invoke(body).json()["generated_text"] == "very end"


def test_small_request_is_served_during_a_large_one(server: Server) -> None:
    """The large request has 500 sequences for 32 places and takes at least twelve seconds."""
    prompts = [f"the {number}th of ten texts" for number in range(10)]
    body = {"inputs": prompts, "parameters": {"n": 50, "max_new_tokens": 40, "ignore_eos": True}}
    large_answers: list[requests.Response] = []
    large = threading.Thread(target=lambda: large_answers.append(server.invoke(body)))
    large.start()
    wait_until(lambda: sum(server.sequences()) > 400)
    answers = [server.invoke({"inputs": "hello", "parameters": {"max_new_tokens": 5}}) for _ in range(3)]
    assert [answer.json()["generated_text"] for answer in answers] == ["hello"] * 3
    assert large.is_alive(), "the small requests have waited for the large one"
    large.join()
    (answer,) = large_answers
    assert answer.status_code == 200
    for prompt, of_prompt in zip(prompts, answer.json(), strict=True):
        samples = [of_prompt["details"], *of_prompt["details"]["best_of_sequences"]]
        texts = ["".join(token["text"] for token in sample["tokens"]) for sample in samples]
        assert texts == [(prompt * 2)[:40]] * 50


def test_operator_decides_whether_requests_may_be_urgent(server: Server) -> None:
    refused = server.invoke({"prompt": "a", "priority": -1}, path="/v1/completions")
    assert refused.status_code == 400
    assert says(refused.json()["error"]["message"], "priority: 0 -1")
    assert server.invoke({"prompt": "a", "priority": 3, "max_tokens": 1}, path="/v1/completions").status_code == 200


BESIDE = """
import gc, weakref
from gevent import monkey
monkey.patch_all()
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.web.gevent_threads import threads_beside

class Text(str):
    pass

def refuse(text):
    raise InvalidRequest("is too long")

def fail(run, text):
    try:
        run(refuse, text)
    except InvalidRequest as error:
        return str(error)

run, text = threads_beside(), Text("abc")
kept = weakref.ref(text)
gc.disable()
print(fail(run, text))
del text
run(str, "another")
print(kept())
"""


def test_failed_thread_keeps_no_reference_to_its_arguments() -> None:
    done = subprocess.run([sys.executable, "-c", BESIDE], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "is too long\nNone\n", done.stderr
