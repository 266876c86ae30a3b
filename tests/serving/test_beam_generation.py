"""Beam search in the web worker: answers over HTTP, and the outputs of `BeamGeneration`."""

from __future__ import annotations

import concurrent.futures
import time
from pathlib import Path

import pytest
import requests
from engine_thread import Engine
from facts import says
from hypothesis import given, settings
from hypothesis import strategies as st
from prompts import encoded
from raw_http import connect, request
from serving import Server, StartServer

from lmi_handlers.core.deadline import Deadline
from lmi_handlers.core.outputs import TextDelta, TokenOutput
from lmi_handlers.core.request import BeamSearchParams, GenerationRequest, Prompt
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.engine.client import EngineClient
from lmi_handlers.serving.beam_generation import BeamGeneration, StopSearch, begin_search
from lmi_handlers.text.bundle import build_byte_bundle
from lmi_handlers.text.sequence import SequenceText, TextRules
from lmi_handlers.text.tokenizer import Tokenizer

# Over HTTP. The echo backend gives the prompt's first byte the logprob -0.5, the next one -1.5, and so on. Faults need a
# number, so "1 DIE@" triggers its fault once the most probable beam begins with "1".


def ask(server: Server, prompt: object, **parameters: object) -> requests.Response:
    return server.invoke({"inputs": prompt, "parameters": {"num_beams": 2} | parameters})


def test_all_beams_are_returned_best_first(echo_server: Server) -> None:
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
    entry = echo_server.log_entry(request_id)
    assert (entry["prompt_tokens"], entry["generated_tokens"]) == (4, 6)
    assert entry["finish_reasons"] == ["length", "length"]


def test_stop_strings_end_beams(echo_server: Server) -> None:
    body = ask(echo_server, "a", max_new_tokens=9, stop_sequences=["aa"]).json()
    [other] = body["details"]["best_of_sequences"]
    assert (body["generated_text"], other["generated_text"]) == ("", "b")
    assert body["details"]["finish_reason"] == other["finish_reason"] == "stop_sequence"


def test_stop_token_ids_end_beams_after_min_tokens(echo_server: Server) -> None:
    body = ask(echo_server, "a", max_new_tokens=9, stop_token_ids=[ord("a")], min_tokens=2, early_stopping=True).json()
    assert body["generated_text"] == "bb"  # includes the end token, which has no text
    assert body["details"]["finish_reason"] == "stop_sequence"
    assert [token["id"] for token in body["details"]["tokens"]] == [ord("b"), ord("b"), ord("a")]


def test_enough_candidates_remain_if_end_tokens_are_not_allowed(echo_server: Server) -> None:
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


def test_model_length_ends_beams(echo_server: Server) -> None:
    body = ask(echo_server, "a" * 4094, max_new_tokens=30).json()
    assert (body["generated_text"], body["details"]["finish_reason"]) == ("aa", "length")


def test_one_beam_is_ordinary_sampling(echo_server: Server) -> None:
    answer = ask(echo_server, "abc", num_beams=1, length_penalty=2.0)
    assert answer.json() == {"generated_text": "abc"}
    assert answer.headers["x-lmi-ignored-parameters"] == "length_penalty"


def test_beam_search_parameters_are_not_ignored(echo_server: Server) -> None:
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
        ({"num_beams": 20}, "most 19 20"),
        ({"num_beams": 1000}, "2 128 1000"),
        ({"num_beams": 0}, "least 1 0"),
    ],
)
def test_unsupported_parameters_are_rejected(echo_server: Server, parameters: dict[str, object], named: str) -> None:
    answer = ask(echo_server, "a", **parameters)
    assert answer.status_code == 424
    error = answer.json()["error"]
    assert error.startswith("parameters.num_beams: ")
    assert says(error, named)


def test_stream_is_rejected(echo_server: Server) -> None:
    answer = echo_server.invoke({"inputs": "a", "stream": True, "parameters": {"num_beams": 2}})
    assert (answer.status_code, answer.headers["Content-Type"]) == (424, "application/json")
    assert says(answer.json()["error"], "parameters.num_beams: streamed")


def test_length_penalty_out_of_range_is_named(echo_server: Server) -> None:
    answer = ask(echo_server, "a", length_penalty=1e9)
    assert says(answer.json()["error"], "parameters.length_penalty: -10 10")


def test_dynamic_batch_answers_with_the_best_beam(start_server: StartServer) -> None:
    server = start_server("option.rolling_batch=disable\noption.backend=echo\noption.enable_streaming=false\n")
    answer = ask(server, ["a", "x"], max_new_tokens=2, return_full_text=False)
    assert answer.json() == [{"generated_text": "aa"}, {"generated_text": "xx"}]


def test_failure_in_a_later_step(echo_server: Server) -> None:
    answer = ask(echo_server, "1 RAISE@")
    assert answer.status_code == 424
    assert says(answer.json()["error"], "echo failed 1")


def test_client_that_disconnects_in_a_later_step(echo_server: Server) -> None:
    body = {"inputs": "1 HANG@", "parameters": {"num_beams": 2}}
    echo_server.wait_for_sequences(0)
    with connect(echo_server, request(body, "/invocations", "x-request-id: beams left")):
        echo_server.wait_for_sequences(1)  # the second step, which hangs: the first one takes no time
    assert echo_server.log_entry("beams left")["error"].startswith("ClientDisconnected")


def test_engine_death_and_deadline_in_a_later_step(start_server: StartServer) -> None:
    server = start_server(
        "option.rolling_batch=echo\noption.echo_faults=true\noption.predict_timeout=4\noption.echo_load_seconds=0.2\n"
    )
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        # Each step of the second one is short, but together they exceed predict_timeout.
        for answer in pool.map(lambda prompt: ask(server, prompt), ("1 HANG@", "SLEEP@1 ")):
            assert (answer.status_code, says(answer.json()["error"], "not finish within predict_timeout")) == (
                504,
                True,
            )
    dead = ask(server, "1 DIE@")
    assert (dead.status_code, says(dead.json()["error"], "engine process ended while request")) == (500, True)
    server.wait_ready()
    assert ask(server, "a", max_new_tokens=2).json()["generated_text"] == "aa"


def test_full_queue_does_not_fail_a_search_that_has_begun(start_server: StartServer) -> None:
    server = start_server(
        "option.rolling_batch=echo\noption.echo_faults=true\noption.echo_load_seconds=4\n"
        "option.echo_tokens_per_second=10\noption.max_rolling_batch_size=1\njob_queue_size=1\n"
    )
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        beams = pool.submit(ask, server, "SLEEP@1", max_new_tokens=2)
        server.wait_for_sequences(1)
        # During the first step, which sleeps, one of these takes the only place and the other one the queue.
        others = [pool.submit(server.invoke, {"inputs": "others"}) for _ in range(2)]
        assert [other.result().status_code for other in others] == [200, 200]
        answer = beams.result()
    assert answer.status_code == 200, answer.text
    assert answer.json()["generated_text"] == "SS"


def test_every_beam_has_the_prompt_logprobs_of_the_first_step(client: EngineClient, tmp_path: Path) -> None:
    params = SamplingParams(n=2, max_tokens=3, temperature=0.0, prompt_logprobs=2)
    generation = BeamGeneration(
        client,
        encoded(b"ab", b"x"),
        GenerationRequest(request_id="r", prompts=(Prompt("ab"), Prompt("x")), sampling_params=params),
        BeamSearchParams(num_beams=2),
        capabilities=Engine.ready.capabilities,
        tokenizer=Tokenizer(tmp_path, build_byte_bundle(tmp_path)),
        deadline=Deadline(time.monotonic() + 60),
    )
    with generation:
        [outputs] = generation
    assert [(item.output.prompt_logprobs, item.output.prompt_top_logprobs) for item in outputs] == [
        *[([None, -0.5], [None, [(ord("b"), -0.5), (ord("c"), -1.5)]])] * 2,
        *[([None], [None])] * 2,
    ]


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("bytes")
    return Tokenizer(folder, build_byte_bundle(folder))


@given(
    tokens=st.lists(st.sampled_from([*"ab\n é".encode(), 256]), min_size=1, max_size=12),
    stop=st.lists(st.text("ab é\n", min_size=1, max_size=4), min_size=1, max_size=3),
    min_tokens=st.integers(0, 4),
    include=st.booleans(),
)
@settings(deadline=None)
def test_stop_strings_in_beams_are_those_of_sequences(
    byte_tokenizer: Tokenizer, tokens: list[int], stop: list[str], min_tokens: int, *, include: bool
) -> None:
    """Beams that fork are told apart, although each token is read once."""
    params = SamplingParams(stop=tuple(stop), min_tokens=min_tokens, include_stop_str_in_output=include)
    rules, search = TextRules(byte_tokenizer, params), StopSearch(TextRules(byte_tokenizer, params), [1])
    for length in range(1, len(tokens) + 1):
        begin = tokens[: length - 1]
        found = {}
        for last in {tokens[length - 1], ord("a"), ord("b")}:
            beam = (*begin, last)
            found[last] = search(beam)
            whole = SequenceText(rules, [1]).feed(TokenOutput(request_id="", token_ids=list(beam)))
            assert found[last] == (whole.finish_reason is not None)
        if found[tokens[length - 1]]:
            return


def test_long_beams_are_not_read_again_for_each_token(
    byte_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a web worker, which is busy meanwhile, would soon need a second for each step of a large search."""
    read = 0
    feed = SequenceText.feed

    def counted(text: SequenceText, output: TokenOutput) -> TextDelta:
        nonlocal read
        read += len(output.token_ids)
        return feed(text, output)

    monkeypatch.setattr(SequenceText, "feed", counted)
    asked = SamplingParams(max_tokens=100, stop=("stop",))
    search = begin_search([1], asked, BeamSearchParams(num_beams=2), 1000, TextRules(byte_tokenizer, asked))
    while search.running:
        search.advance([[(ord("a"), -0.5), (ord("b"), -1.5)] for _ in search.running])
    assert read <= 100 * 4
