"""Beam search: the algorithm against enumeration and against transformers, then over HTTP on real servers."""

from __future__ import annotations

import concurrent.futures
import copy
import itertools
import json
import math
import os
import random
import re
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import requests
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import Server, StartServer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.outputs import FinishReason
from lmi_handlers.core.request import BeamSearchParams
from lmi_handlers.engine.cache_dir import default_cache_dir
from lmi_handlers.engine.model_store import resolve_model
from lmi_handlers.serving.beam_search import Beam, BeamSearch, Continuations

Expand = Callable[[list[Beam]], Sequence[Continuations]]


def run(search: BeamSearch, expand: Expand) -> list[Beam]:
    while search.running:
        search.advance(expand(search.running))
    return search.finished


# Against enumeration


def table(seed: int, vocab_size: int, *, top: int | None = None) -> Expand:
    """Random probabilities of the next token, different after each prefix."""

    def continuations(beam: Beam) -> Continuations:
        source = random.Random(f"{seed} {beam.token_ids}")
        weights = [source.expovariate(1) + 1e-6 for _ in range(vocab_size)]
        pairs = [(token_id, math.log(weight / sum(weights))) for token_id, weight in enumerate(weights)]
        return sorted(pairs, key=lambda pair: -pair[1])[:top]

    return lambda beams: [continuations(beam) for beam in beams]


def every_answer(expand: Expand, *, vocab_size: int, max_tokens: int, min_tokens: int, end: int) -> list[Beam]:
    """All complete answers there can be, found without any pruning."""
    answers = []
    for length in range(1, max_tokens + 1):
        for token_ids in itertools.product(range(vocab_size), repeat=length):
            ends_early = end in token_ids[:-1] or (end in token_ids and token_ids.index(end) < min_tokens)
            if ends_early or (token_ids[-1] != end and length < max_tokens):
                continue
            logprobs = [
                dict(expand([Beam(token_ids=token_ids[:position])])[0])[token_id]
                for position, token_id in enumerate(token_ids)
            ]
            reason = FinishReason.EOS_TOKEN if token_ids[-1] == end else FinishReason.LENGTH
            answers.append(Beam(token_ids, tuple(logprobs), (), sum(logprobs), reason))
    return answers


@settings(deadline=None)
@given(
    seed=st.integers(0, 10**9),
    vocab_size=st.integers(2, 3),
    max_tokens=st.integers(1, 4),
    min_tokens=st.integers(0, 2),
    length_penalty=st.floats(-2, 3),
)
def test_beams_for_every_answer_find_the_best_ones(
    seed: int, vocab_size: int, max_tokens: int, min_tokens: int, length_penalty: float
) -> None:
    params = BeamSearchParams(num_beams=128, length_penalty=length_penalty)
    expand = table(seed, vocab_size)
    search = BeamSearch(
        params, max_tokens=max_tokens, min_tokens=min_tokens, endings={vocab_size - 1: FinishReason.EOS_TOKEN}
    )
    found = run(search, expand)
    answers = every_answer(
        expand, vocab_size=vocab_size, max_tokens=max_tokens, min_tokens=min_tokens, end=vocab_size - 1
    )
    assert {(beam.token_ids, beam.logprobs, beam.finish_reason) for beam in found} == {
        (beam.token_ids, beam.logprobs, beam.finish_reason) for beam in answers
    }
    scores = [beam.score(length_penalty) for beam in found]
    assert scores == sorted(scores, reverse=True)


@settings(deadline=None)
@given(
    seed=st.integers(0, 10**9),
    num_beams=st.integers(2, 4),
    endings=st.sets(st.integers(0, 11), max_size=2),
    min_tokens=st.integers(0, 3),
    early_stopping=st.booleans(),
)
def test_one_candidate_for_each_beam_and_each_ending_is_enough(
    seed: int, num_beams: int, endings: set[int], min_tokens: int, early_stopping: bool
) -> None:
    def answers(top: int | None) -> list[tuple[int, ...]]:
        params = BeamSearchParams(num_beams=num_beams, early_stopping=early_stopping)
        reasons = dict.fromkeys(endings, FinishReason.EOS_TOKEN)
        search = BeamSearch(params, max_tokens=6, min_tokens=min_tokens, endings=reasons)
        return [beam.token_ids for beam in run(search, table(seed, 12, top=top))]

    assert answers(num_beams + len(endings)) == answers(None)
    assert len(answers(None)) == num_beams


def test_a_beam_ends_where_its_text_does() -> None:
    def contains_stop(token_ids: Sequence[int]) -> bool:
        return token_ids[-2:] == (0, 0)

    params = BeamSearchParams(num_beams=2, length_penalty=0.0)
    search = BeamSearch(params, max_tokens=3, contains_stop=contains_stop)
    found = run(search, lambda beams: [[(0, -0.5), (1, -1.5)] for _ in beams])
    assert [(beam.token_ids, beam.finish_reason, beam.cumulative_logprob) for beam in found] == [
        ((0, 0), FinishReason.STOP_SEQUENCE, -1.0),
        ((0, 1, 0), FinishReason.LENGTH, -2.5),
    ]


def test_answers_are_complete_where_no_beam_can_go_on() -> None:
    params = BeamSearchParams(num_beams=2)
    search = BeamSearch(params, max_tokens=9, contains_stop=lambda token_ids: True)
    found = run(search, lambda beams: [[(0, -0.5), (1, -1.5), (2, -3.0)] for _ in beams])
    assert [beam.token_ids for beam in found] == [(0,), (1,)]


@pytest.mark.parametrize("wrong", [{"num_beams": 1}, {"num_beams": 129}, {"length_penalty": 11.0}])
def test_parameters_out_of_range_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(wrong))):
        BeamSearchParams(**{"num_beams": 2} | wrong)


# Against transformers


def expand_with(model: Any, prompt: list[int], count: int) -> Expand:
    """One plain forward of all beams, each from the end of the prompt, which is read once."""
    with torch.inference_mode():
        of_prompt = model(torch.tensor([prompt[:-1]]), use_cache=True).past_key_values

    def expand(beams: list[Beam]) -> Sequence[Continuations]:
        with torch.inference_mode():
            token_ids = torch.tensor([[prompt[-1], *beam.token_ids] for beam in beams])
            cache = copy.deepcopy(of_prompt)
            cache.batch_repeat_interleave(len(beams))
            logits = model(token_ids, past_key_values=cache, logits_to_keep=1).logits[:, -1]
        values, ids = logits.float().log_softmax(dim=-1).topk(min(count, logits.shape[-1]), dim=-1)
        return [list(zip(*row, strict=True)) for row in zip(ids.tolist(), values.tolist(), strict=True)]

    return expand


def check_against_transformers(
    model: Any, prompt: list[int], params: BeamSearchParams, *, eos: list[int], max_tokens: int, min_tokens: int = 0
) -> list[Beam]:
    expected = model.generate(
        torch.tensor([prompt]),
        num_beams=params.num_beams,
        num_return_sequences=params.num_beams,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        do_sample=False,
        max_new_tokens=max_tokens,
        min_new_tokens=min_tokens,
        eos_token_id=eos,
        pad_token_id=eos[0],
        return_dict_in_generate=True,
        output_scores=True,
    )
    search = BeamSearch(
        params,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        endings=dict.fromkeys(eos, FinishReason.EOS_TOKEN),
    )
    found = run(search, expand_with(model, prompt, params.num_beams + len(eos)))
    assert [list(beam.token_ids) for beam in found] == [
        until_end(row, eos) for row in expected.sequences[:, len(prompt) :].tolist()
    ]
    assert [beam.score(params.length_penalty) for beam in found] == pytest.approx(
        expected.sequences_scores.tolist(), rel=1e-4, abs=1e-4
    )
    for beam in found:
        assert (beam.finish_reason is FinishReason.EOS_TOKEN) == (beam.token_ids[-1] in eos)
    return found


def until_end(token_ids: list[int], eos: list[int]) -> list[int]:
    ends = [position for position, token_id in enumerate(token_ids) if token_id in eos]
    return token_ids[: ends[0] + 1] if ends else token_ids


def tiny_model(seed: int) -> Any:
    """A model of sixteen tokens whose answers end early and late, depending on the seed."""
    torch.manual_seed(seed)
    make: Any = AutoModelForCausalLM.from_config  # the library's own types are partial
    model = make(
        LlamaConfig(
            vocab_size=16,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=64,
        )
    )
    with torch.no_grad():
        model.lm_head.weight.mul_(20.0)
    return model.eval()


# Drawn once and for all: where float32 makes a tie of two scores, both answers would be right.
@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    num_beams=st.integers(2, 4),
    length_penalty=st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0]),
    early_stopping=st.booleans(),
    eos=st.lists(st.integers(0, 15), min_size=1, max_size=3, unique=True),
    max_tokens=st.integers(1, 12),
    min_tokens=st.integers(0, 4),
)
def test_random_models_like_transformers(
    seed: int,
    num_beams: int,
    length_penalty: float,
    early_stopping: bool,
    eos: list[int],
    max_tokens: int,
    min_tokens: int,
) -> None:
    params = BeamSearchParams(num_beams=num_beams, length_penalty=length_penalty, early_stopping=early_stopping)
    check_against_transformers(
        tiny_model(seed),
        [1, 2, 3],
        params,
        eos=eos,
        max_tokens=max_tokens,
        min_tokens=min(min_tokens, max_tokens),
    )


PROMPTS = {
    "ends": "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "goes on": "Deep Learning is",
}


class RealModel:
    """The default model, in float32, as transformers runs it."""

    def __init__(self) -> None:
        path = resolve_model(
            None, model_dir=None, revision=None, cache_dir=default_cache_dir(os.environ), report=lambda phase: None
        )
        self.tokenizer: Any = AutoTokenizer.from_pretrained(path)
        self.model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self.eos: list[int] = [self.tokenizer.eos_token_id]


@pytest.fixture(scope="module")
def real_model() -> RealModel:
    return RealModel()


@pytest.mark.model
@pytest.mark.parametrize(
    ("prompt", "num_beams", "length_penalty", "early_stopping"),
    [
        ("ends", 3, 1.0, True),
        ("goes on", 2, 0.5, False),
        *(
            pytest.param(*others, marks=pytest.mark.long)
            for others in (
                ("ends", 2, 0.5, False),
                ("ends", 4, 1.0, False),
                ("ends", 4, 2.0, False),
                ("goes on", 3, 1.0, True),
                ("goes on", 4, 1.0, False),
                ("goes on", 4, 2.0, False),
            )
        ),
    ],
)
def test_the_real_model_like_transformers(
    real_model: RealModel, prompt: str, num_beams: int, length_penalty: float, early_stopping: bool
) -> None:
    params = BeamSearchParams(num_beams=num_beams, length_penalty=length_penalty, early_stopping=early_stopping)
    token_ids = real_model.tokenizer.encode(PROMPTS[prompt])
    found = check_against_transformers(real_model.model, token_ids, params, eos=real_model.eos, max_tokens=12)
    assert (prompt == "ends") == any(beam.finish_reason is FinishReason.EOS_TOKEN for beam in found)


@pytest.mark.model
def test_the_model_server_like_transformers(real_model: RealModel, model_server: Server) -> None:
    tokenizer, prompt = real_model.tokenizer, PROMPTS["goes on"]
    token_ids = torch.tensor([tokenizer.encode(prompt)])
    expected = real_model.model.generate(
        token_ids, num_beams=3, num_return_sequences=3, do_sample=False, max_new_tokens=12, pad_token_id=0
    )
    answer = model_server.invoke({"inputs": prompt, "parameters": {"num_beams": 3, "max_new_tokens": 12}}).json()
    details = answer["details"]
    texts = [answer["generated_text"], *(other["generated_text"] for other in details["best_of_sequences"])]
    assert texts == [tokenizer.decode(row[token_ids.shape[1] :], skip_special_tokens=True) for row in expected]
    assert details["generated_tokens"] == 12
    assert all(token["log_prob"] < 0 for token in details["tokens"])


# Over HTTP. The echo backend gives the prompt's first byte -0.5, the one after it -1.5, and so on. A prompt's fault needs
# its number, so "1 DIE@" asks for it when the most probable beam has begun with "1".


def ask(server: Server, prompt: object, **parameters: object) -> requests.Response:
    return server.invoke({"inputs": prompt, "parameters": {"num_beams": 2} | parameters})


def test_all_beams_best_first(echo_server: Server) -> None:
    answer = ask(echo_server, "a", max_new_tokens=3, top_n_tokens=2, decoder_input_details=True)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    details = body["details"]
    [other] = details["best_of_sequences"]
    assert (body["generated_text"], other["generated_text"]) == ("aaa", "aab")
    assert (details["finish_reason"], details["generated_tokens"]) == ("length", 3)
    assert [token["log_prob"] for token in other["tokens"]] == [-0.5, -0.5, -1.5]
    assert [[token["text"] for token in step] for step in other["top_tokens"]] == [["a", "b"]] * 3
    assert [token["text"] for token in details["prefill"]] == ["a"]


def test_usage_is_counted_once(echo_server: Server) -> None:
    body = {"inputs": "abcd", "parameters": {"num_beams": 2, "max_new_tokens": 3}}
    request_id = echo_server.invoke(body, headers={"x-request-id": "beams counted"}).headers["x-request-id"]
    entry = log_entry(echo_server, request_id)
    assert (entry["prompt_tokens"], entry["generated_tokens"]) == (4, 6)
    assert entry["finish_reasons"] == ["length", "length"]


def test_stop_strings_end_beams(echo_server: Server) -> None:
    body = ask(echo_server, "a", max_new_tokens=9, stop_sequences=["aa"]).json()
    [other] = body["details"]["best_of_sequences"]
    assert (body["generated_text"], other["generated_text"]) == ("", "b")
    assert body["details"]["finish_reason"] == other["finish_reason"] == "stop_sequence"


def test_stop_token_ids_end_beams_after_min_tokens(echo_server: Server) -> None:
    body = ask(echo_server, "a", max_new_tokens=9, stop_token_ids=[ord("a")], min_tokens=2, early_stopping=True).json()
    assert body["generated_text"] == "bb"  # and the token that ended it, which is no text
    assert body["details"]["finish_reason"] == "stop_sequence"
    assert [token["id"] for token in body["details"]["tokens"]] == [ord("b"), ord("b"), ord("a")]


def test_tokens_that_must_not_end_a_beam_leave_enough_others(echo_server: Server) -> None:
    body = ask(echo_server, "a", max_new_tokens=1, min_tokens=1, stop_token_ids=[ord("a")]).json()
    [other] = body["details"]["best_of_sequences"]
    assert (body["generated_text"], other["generated_text"]) == ("b", "c")


def test_fewer_answers_than_beams(echo_server: Server) -> None:
    body = ask(echo_server, "a", num_beams=4, n=2, max_new_tokens=2).json()
    assert len(body["details"]["best_of_sequences"]) == 1


def test_list_of_prompts(echo_server: Server) -> None:
    first, second = ask(echo_server, ["a", "x"], max_new_tokens=2).json()
    assert (first["generated_text"], second["generated_text"]) == ("aa", "xx")
    assert second["details"]["best_of_sequences"][0]["generated_text"] == "xy"


def test_the_model_length_ends_beams(echo_server: Server) -> None:
    body = ask(echo_server, "a" * 4094, max_new_tokens=30).json()
    assert (body["generated_text"], body["details"]["finish_reason"]) == ("aa", "length")


def test_one_beam_is_no_beam_search(echo_server: Server) -> None:
    answer = ask(echo_server, "abc", num_beams=1, length_penalty=2.0)
    assert answer.json() == {"generated_text": "abc"}
    assert answer.headers["x-lmi-ignored-parameters"] == "length_penalty"


def test_beam_searchs_own_parameters_are_not_ignored(echo_server: Server) -> None:
    answer = ask(echo_server, "a", max_new_tokens=2, length_penalty=2.0, early_stopping=True)
    assert answer.status_code == 200
    assert "x-lmi-ignored-parameters" not in answer.headers


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"repetition_penalty": 1.2}, "parameters.repetition_penalty"),
        ({"presence_penalty": 0.5}, "parameters.presence_penalty"),
        ({"frequency_penalty": 0.5}, "parameters.frequency_penalty"),
        ({"logit_bias": {"5": 1.0}}, "parameters.logit_bias"),
        ({"temperature": 0.7}, "parameters.temperature"),
        ({"do_sample": True}, "parameters.do_sample"),
        ({"n": 3}, "parameters.n"),
        ({"best_of": 3}, "parameters.best_of"),
        ({"num_beams": 20}, "must be at most 19, got 20"),
        ({"num_beams": 1000}, "must be from 2 to 128, got 1000"),
        ({"num_beams": 0}, "must be at least 1, got 0"),
    ],
)
def test_what_would_be_wrong_is_refused(echo_server: Server, parameters: dict[str, object], named: str) -> None:
    answer = ask(echo_server, "a", **parameters)
    assert answer.status_code == 424
    error = answer.json()["error"]
    assert error.startswith("parameters.num_beams: ")
    assert named in error


def test_a_stream_is_refused(echo_server: Server) -> None:
    answer = echo_server.invoke({"inputs": "a", "stream": True, "parameters": {"num_beams": 2}})
    assert (answer.status_code, answer.headers["Content-Type"]) == (424, "application/json")
    assert answer.json()["error"].startswith("parameters.num_beams: beam search cannot be streamed")


def test_length_penalty_out_of_range_is_named(echo_server: Server) -> None:
    answer = ask(echo_server, "a", length_penalty=1e9)
    assert answer.json()["error"].startswith("parameters.length_penalty: must be from -10 to 10")


def test_dynamic_batch_answers_with_the_best_beam(start_server: StartServer) -> None:
    server = start_server("option.rolling_batch=disable\noption.backend=echo\noption.enable_streaming=false\n")
    answer = ask(server, ["a", "x"], max_new_tokens=2, return_full_text=False)
    assert answer.json() == [{"generated_text": "aa"}, {"generated_text": "xx"}]


def test_a_failure_in_a_later_step(echo_server: Server) -> None:
    answer = ask(echo_server, "1 RAISE@")
    assert answer.status_code == 424
    assert answer.json()["error"] == "the echo backend failed at token 1, as the prompt asked"


def test_a_client_that_leaves_in_a_later_step(echo_server: Server) -> None:
    body = json.dumps({"inputs": "1 HANG@", "parameters": {"num_beams": 2}})
    wait_for_running(echo_server, 0)
    with socket.create_connection(("127.0.0.1", echo_server.port), timeout=30) as sock:
        head = (
            f"POST /invocations HTTP/1.1\r\nHost: x\r\nx-request-id: beams left\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        sock.sendall((head + body).encode())
        wait_for_running(echo_server, 1)  # for good: the first step is over at once
    assert log_entry(echo_server, "beams left")["error"].startswith("ClientDisconnected")


def test_engine_death_and_deadline_in_a_later_step(start_server: StartServer) -> None:
    server = start_server(
        "option.rolling_batch=echo\noption.echo_faults=true\noption.predict_timeout=1\noption.echo_load_seconds=0.2\n"
    )
    hanging = ask(server, "1 HANG@")
    assert (hanging.status_code, hanging.json()["error"]) == (504, "the request was not done within predict_timeout")
    # None of these steps takes long; all of them together do.
    slow = ask(server, "SLEEP@1 ")
    assert (slow.status_code, slow.json()["error"]) == (504, "the request was not done within predict_timeout")
    dead = ask(server, "1 DIE@")
    assert (dead.status_code, dead.json()["error"]) == (500, "the engine process ended while it worked on this request")
    server.wait_ready()
    assert ask(server, "a", max_new_tokens=2).json()["generated_text"] == "aa"


def test_a_full_queue_does_not_fail_what_has_begun(start_server: StartServer) -> None:
    server = start_server(
        "option.rolling_batch=echo\noption.echo_faults=true\noption.echo_load_seconds=1\n"
        "option.echo_tokens_per_second=10\noption.max_rolling_batch_size=1\njob_queue_size=1\n"
    )
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        beams = pool.submit(ask, server, "SLEEP@1", max_new_tokens=2)
        wait_for_running(server, 1)
        # The first step is asleep. Before the second one comes, one of these takes the only place and one the queue.
        others = [pool.submit(server.invoke, {"inputs": "others"}) for _ in range(2)]
        assert [other.result().status_code for other in others] == [200, 200]
        answer = beams.result()
    assert answer.status_code == 200, answer.text
    assert answer.json()["generated_text"] == "SS"


def wait_for_running(server: Server, number: int) -> None:
    """Wait until the engine says that so many sequences run."""
    deadline = time.monotonic() + 30
    while True:
        page = requests.get(f"{server.url}/metrics", timeout=30).text
        if re.search(rf"^vllm:num_requests_running{{.*}} {number}(\.0)?$", page, re.MULTILINE):
            return
        assert time.monotonic() < deadline, page
        time.sleep(0.05)


def log_entry(server: Server, request_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for line in server.log.splitlines():
            if request_id in line:
                entry: dict[str, Any] = json.loads(line)
                return entry
        time.sleep(0.05)
    raise AssertionError("no log line has the request's id")
