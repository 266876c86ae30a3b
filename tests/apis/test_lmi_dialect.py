"""LMI's dialect over HTTP on the real model, what depends on the engine on each: `--rolling-batch vllm` runs only vLLM.

test_lmi_vectors.py compares the bytes of every format. Here, the formats must agree with each other.
"""

from __future__ import annotations

import concurrent.futures
import json
import math
from typing import Any

import pytest
import requests
from facts import says
from server_sent_events import json_events
from serving import Server

pytestmark = pytest.mark.model

PROMPT = "The capital of France is"
EOS = 2


def ask(server: Server, inputs: object = PROMPT, *, path: str = "/invocations", **body: Any) -> requests.Response:
    stream = body.pop("stream", None)
    document = {"inputs": inputs, "parameters": body} | ({} if stream is None else {"stream": stream})
    return server.invoke(document, path=path)


def text_of(response: requests.Response) -> str:
    assert response.status_code == 200, response.text
    text: str = response.json()["generated_text"]
    return text


def records(response: requests.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    if response.headers["Content-Type"].startswith("text/event-stream"):
        return json_events(response.text)
    return [json.loads(line) for line in response.text.splitlines()]


# One answer in each format


def test_all_routes_return_the_same_answer(model_server_once: Server) -> None:
    paths = ("/invocations", f"/predictions/{model_server_once.name}", f"/models/{model_server_once.name}/invoke")
    answers = {text_of(ask(model_server_once, path=path, max_new_tokens=8)) for path in paths}
    assert len(answers) == 1
    assert "Paris" in answers.pop()


def test_defaults_are_thirty_tokens_and_greedy(model_server_once: Server) -> None:
    plain = text_of(model_server_once.invoke({"inputs": PROMPT}))
    details = ask(model_server_once, max_new_tokens=30, details=True).json()
    assert plain == details["generated_text"]
    assert details["details"]["generated_tokens"] == 30


def assert_stream_and_document_agree(server: Server, *formatters: str | None) -> None:
    asked: dict[str, Any] = {"max_new_tokens": 16, "details": True}
    whole = ask(server, **asked).json()
    for formatter in formatters:
        chosen: dict[str, Any] = {} if formatter is None else {"output_formatter": formatter}
        steps = records(ask(server, stream=True, **asked, **chosen))
        last = steps[-1]
        assert last["generated_text"] == whole["generated_text"] == "".join(step["token"]["text"] for step in steps)
        assert [step["token"] for step in steps] == [pytest.approx(token) for token in whole["details"]["tokens"]]
        assert last["details"]["finish_reason"] == whole["details"]["finish_reason"] == "length"
        assert last["details"]["generated_tokens"] == whole["details"]["generated_tokens"] == 16


def test_stream_and_document_agree(model_server: Server) -> None:
    assert_stream_and_document_agree(model_server, None)


def test_formats_of_a_stream_agree(model_server_once: Server) -> None:
    assert_stream_and_document_agree(model_server_once, "jsonlines", "sse")


def test_details(model_server: Server) -> None:
    answer = ask(model_server, max_new_tokens=6, details=True, decoder_input_details=True, top_n_tokens=3).json()
    details = answer["details"]
    assert details["inputs"] == PROMPT
    assert [token["text"] for token in details["prefill"]] == ["The", " capital", " of", " France", " is"]
    assert details["prefill"][0]["log_prob"] is None
    assert all(token["log_prob"] < 0 for token in details["prefill"][1:])
    for token, top in zip(details["tokens"], details["top_tokens"], strict=True):
        best = top if isinstance(top, list) else list(top.values())
        assert len(best) == 3
        assert token["id"] == best[0]["id"], "greedy decoding must choose the most probable token"
        assert [item["log_prob"] for item in best] == sorted((item["log_prob"] for item in best), reverse=True)


def test_return_full_text(model_server_once: Server) -> None:
    generated = text_of(ask(model_server_once, max_new_tokens=5))
    assert text_of(ask(model_server_once, max_new_tokens=5, return_full_text=True)) == PROMPT + generated


def test_list_of_prompts(model_server_once: Server) -> None:
    prompts = [PROMPT, "Once upon a time", "1, 2, 3,"]
    answer = ask(model_server_once, prompts, max_new_tokens=6)
    alone = [text_of(ask(model_server_once, prompt, max_new_tokens=6)) for prompt in prompts]
    assert [item["generated_text"] for item in answer.json()] == alone


def test_text_plain_body_is_the_prompt(model_server_once: Server) -> None:
    answer = requests.post(
        f"{model_server_once.url}/invocations", data=PROMPT, headers={"Content-Type": "text/plain"}, timeout=60
    )
    assert text_of(answer) == text_of(model_server_once.invoke({"inputs": PROMPT}))


# Parameters


def test_seed(model_server: Server) -> None:
    asked: dict[str, Any] = {"max_new_tokens": 8, "do_sample": True, "temperature": 1.5}
    first = text_of(ask(model_server, seed=11, **asked))
    assert text_of(ask(model_server, seed=11, **asked)) == first
    assert text_of(ask(model_server, seed="11", **asked)) == first
    assert len({text_of(ask(model_server, **asked)) for _ in range(4)}) > 1, "samples without a seed must differ"


def test_samples_differ_and_are_reproducible(model_server: Server) -> None:
    asked: dict[str, Any] = {"max_new_tokens": 8, "do_sample": True, "temperature": 1.5, "seed": 3, "n": 3}
    one, other = (ask(model_server, **asked).json() for _ in range(2))
    assert one == other
    texts = [one["generated_text"], *(item["generated_text"] for item in one["details"]["best_of_sequences"])]
    assert len(set(texts)) == 3


@pytest.mark.parametrize("stream", [False, True])
def test_stop_sequence(model_server_once: Server, stream: bool) -> None:
    free = text_of(ask(model_server_once, max_new_tokens=24))
    stop = free[6:9]
    answer = ask(model_server_once, max_new_tokens=24, stop_sequences=[stop], details=True, stream=stream)
    last = records(answer)[-1] if stream else answer.json()
    assert last["generated_text"] == free[: free.index(stop)]
    assert last["details"]["finish_reason"] == "stop_sequence"


def test_end_of_sequence(model_server: Server) -> None:
    answer = ask(model_server, max_new_tokens=20, logit_bias={str(EOS): 100}, details=True).json()
    assert answer["generated_text"] == ""
    assert answer["details"]["finish_reason"] == "eos_token"
    ignored = ask(model_server, max_new_tokens=5, logit_bias={str(EOS): 100}, details=True, ignore_eos_token=True)
    assert [token["id"] for token in ignored.json()["details"]["tokens"]] == [EOS] * 5


def test_min_tokens_and_stop_token_ids(model_server: Server) -> None:
    free = [token["id"] for token in ask(model_server, max_new_tokens=8, details=True).json()["details"]["tokens"]]
    stopped = ask(model_server, max_new_tokens=8, stop_token_ids=[free[2]], details=True).json()["details"]
    assert [token["id"] for token in stopped["tokens"]] == free[: free.index(free[2]) + 1]
    held = ask(model_server, max_new_tokens=8, min_tokens=6, stop_token_ids=[free[2]], details=True).json()["details"]
    assert len(held["tokens"]) >= 6


def test_truncate_keeps_the_last_tokens(model_server_once: Server) -> None:
    answer = ask(model_server_once, "ignored words. " * 9 + PROMPT, truncate=5, max_new_tokens=8)
    assert text_of(answer) == text_of(ask(model_server_once, f" {PROMPT}", max_new_tokens=8))


def test_allowed_token_ids(model_server: Server) -> None:
    answer = ask(model_server, max_new_tokens=5, allowed_token_ids=[28, 29], details=True, do_sample=True).json()
    assert {token["id"] for token in answer["details"]["tokens"]} <= {28, 29, EOS}


def test_logprobs_are_the_models(model_server: Server) -> None:
    """The temperature and the filters do not change them."""
    plain = ask(model_server, max_new_tokens=1, details=True).json()["details"]["tokens"][0]
    sampled = ask(model_server, max_new_tokens=1, details=True, do_sample=True, temperature=0.5, top_k=1).json()
    token = sampled["details"]["tokens"][0]
    assert token["id"] == plain["id"]
    assert math.isclose(token["log_prob"], plain["log_prob"], abs_tol=1e-3)


def test_beam_search(model_server_once: Server) -> None:
    answer = ask(model_server_once, max_new_tokens=6, num_beams=3)
    assert len(text_of(answer)) > 5


# Errors


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": "3"}, "max_new_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids"),
        ({"logit_bias": {"1000000": 1}}, "logit_bias"),
        ({"details": True, "top_n_tokens": 21}, "top_n_tokens"),
        ({"seed": "abc"}, "seed"),
    ],
)
def test_error_names_the_invalid_parameter(model_server: Server, parameters: dict[str, Any], field: str) -> None:
    answer = ask(model_server, **parameters)
    assert (answer.status_code, answer.json()["code"]) == (424, 424)
    assert answer.json()["error"].startswith(f"parameters.{field}: ")


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_that_is_too_long(model_server_once: Server, stream: bool) -> None:
    answer = ask(model_server_once, "word " * 9000, stream=stream)
    assert answer.status_code == 424
    assert says(answer.json()["error"], "inputs: tokens")


def test_error_names_the_unknown_adapter(model_server_once: Server) -> None:
    answer = model_server_once.invoke({"inputs": PROMPT, "adapters": "nobody"})
    assert answer.status_code == 424
    assert answer.json()["error"].startswith("adapters: ")


def test_invalid_requests_do_not_affect_others(model_server_once: Server) -> None:
    """Every client gets the same answer as without the rejected requests."""
    prompts = [f"Number {number}:" for number in range(6)]
    alone = [text_of(ask(model_server_once, prompt, max_new_tokens=12)) for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        good = [pool.submit(ask, model_server_once, prompt, max_new_tokens=12) for prompt in prompts]
        bad = [pool.submit(ask, model_server_once, "word " * 9000) for _ in range(3)]
        bad += [pool.submit(ask, model_server_once, temperature=-1) for _ in range(3)]
        assert [text_of(answer.result()) for answer in good] == alone
        assert {answer.result().status_code for answer in bad} == {424}
