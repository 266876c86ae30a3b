"""From the engine's outputs to the bytes of an answer."""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import pytest
from engine_thread import submit
from prompts import rendered
from waiting import wait_until

from formatters.lmi.rolling import JsonFormatter, JsonLinesFormatter
from lmi_handlers.core.errors import (
    ClientDisconnected,
    DeadlineExceeded,
    InvalidRequest,
    RequestFailed,
    TurnConflict,
)
from lmi_handlers.core.event_loop import RunBeside, at_once
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import GenerationRequest, Prompt
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.core.usage import Usage
from lmi_handlers.engine.client import EngineClient, InFlightRequest
from lmi_handlers.engine.messages import SequenceOutput
from lmi_handlers.metrics.requests import RequestMetrics
from lmi_handlers.serving.answer import Answer, _in_turns
from lmi_handlers.serving.parsed import Parsed
from lmi_handlers.text.bundle import build_byte_bundle
from lmi_handlers.text.sequence import SequenceText, TextRules
from lmi_handlers.text.tokenizer import Tokenizer

P = ParamSpec("P")
T = TypeVar("T")


def answer_of(
    client: EngineClient,
    tmp_path: Path,
    prompt: bytes,
    *,
    n: int = 1,
    run_beside: RunBeside = at_once,
    on_complete: Callable[[str], None] | None = None,
    **options: Any,
) -> Answer:
    tokenizer = Tokenizer(tmp_path, build_byte_bundle(tmp_path))
    params = SamplingParams(n=n)
    request = GenerationRequest(request_id="r", prompts=(Prompt(prompt.decode()),), sampling_params=params)
    return Answer(
        submit(client, prompt, n=n, **options),
        JsonFormatter(request, rendered(len(prompt), prompt.decode())),
        [SequenceText(TextRules(tokenizer, params), list(prompt), index=index) for index in range(n)],
        Usage(started=time.monotonic()),
        RequestMetrics(tmp_path, "m"),
        Parsed(request, JsonFormatter, str, on_complete=on_complete),
        run_beside,
    )


@pytest.mark.parametrize(("n", "beside"), [(2, False), (20, True)])
def test_long_document_is_rendered_outside_the_event_loop(
    n: int, beside: bool, client: EngineClient, tmp_path: Path
) -> None:
    """This also holds for many short sequences."""
    ran: list[str] = []

    def run_beside(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        ran.append(function.__name__)
        return function(*args, **kwargs)

    document = json.loads(b"".join(answer_of(client, tmp_path, b"x" * 100, n=n, run_beside=run_beside)))
    assert len(document["details"]["best_of_sequences"]) == n - 1
    assert ("finish" in ran) == beside


@pytest.mark.parametrize(
    ("prompt", "options", "error"),
    [
        (b"RAISE@2", {}, RequestFailed),
        (b"REFUSE@1", {}, InvalidRequest),
        (b"x HANG@1", {"timeout": 0.1}, DeadlineExceeded),
        (b"x HANG@1", {"connected": lambda: False}, ClientDisconnected),
    ],
)
def test_failed_answer_is_freed_without_the_garbage_collector(
    prompt: bytes, options: dict[str, Any], error: type[Exception], client: EngineClient, tmp_path: Path
) -> None:
    """A web worker rarely runs the garbage collector."""
    answer = answer_of(client, tmp_path, prompt, **options)
    kept = weakref.ref(answer)
    gc.disable()
    try:
        with pytest.raises(error):
            b"".join(answer)
        answer.close()
        del answer
        wait_until(lambda: kept() is None)  # the client's thread may still hold the error, whose traceback refers to it
    finally:
        gc.enable()


def test_the_whole_text_is_passed_on_before_the_answer_ends(client: EngineClient, tmp_path: Path) -> None:
    texts: list[str] = []
    document = json.loads(b"".join(answer_of(client, tmp_path, b"abc", on_complete=texts.append)))
    assert texts == [document["generated_text"]] == ["abc"]


def test_what_is_not_passed_on_is_an_error_of_the_answer(client: EngineClient, tmp_path: Path) -> None:
    def refuse(_: str) -> None:
        raise TurnConflict("too late")

    with pytest.raises(TurnConflict):
        b"".join(answer_of(client, tmp_path, b"abc", on_complete=refuse))


def test_a_text_that_does_not_become_complete_is_not_passed_on(client: EngineClient, tmp_path: Path) -> None:
    texts: list[str] = []
    with pytest.raises(RequestFailed):
        b"".join(answer_of(client, tmp_path, b"RAISE@2", on_complete=texts.append))
    assert texts == []


class Turns:
    """A reader that notes what it is told. It reads at once what can be read without waiting."""

    def __init__(self, answer: Answer) -> None:
        self.told: list[str] = []
        self.received: list[bytes] = []
        self._answer = answer

    def advance(self) -> None:
        self.told.append("advance")
        self.received.append(next(iter(self._answer)))

    def resume(self) -> None:
        self.told.append("resume")


def put(generation: InFlightRequest, text: bytes, reason: FinishReason | None = None, **fields: Any) -> None:
    output = TokenOutput(request_id="", token_ids=list(text), finish_reason=reason, **fields)
    generation.put(SequenceOutput(generation.number, 0, output, 0.0))


def test_reader_is_told_who_may_read_each_output(client: EngineClient, tmp_path: Path) -> None:
    """Only what is short is read where it arrives, and the end is not."""
    answer, generation = stream_of(client, tmp_path)
    reader = Turns(answer)
    with contextlib.closing(answer):
        put(generation, b"a")
        first = next(filter(None, answer))
        assert answer.tell(reader)
        assert not answer.ready()
        put(generation, b"b")
        put(generation, b"c")
        assert (reader.told, len(reader.received)) == (["advance"] * 2, 2)
        put(generation, b"d" * 1025)
        assert reader.told == ["advance", "advance", "resume"]
        reader.received.append(next(iter(answer)))
        put(generation, b"e", FinishReason.LENGTH)
        assert reader.told[3:] == ["resume"]
        assert answer.ready()
        body = b"".join([first, *reader.received, *answer])
    texts = [json.loads(line)["token"]["text"] for line in body.splitlines()]
    assert texts == ["a", "b", "c", *"d" * 1025, "e"]


@pytest.mark.parametrize("failure", [None, RequestFailed("no memory")])
def test_reader_is_told_of_the_end(failure: RequestFailed | None, client: EngineClient, tmp_path: Path) -> None:
    """Also if it is a stop string, which the engine does not know, or an error."""
    answer, generation = stream_of(client, tmp_path, stop=("bc",))
    reader = Turns(answer)
    with contextlib.closing(answer):
        put(generation, b"a")
        next(filter(None, answer))
        assert answer.tell(reader)
        put(generation, b"b")
        if failure is None:
            put(generation, b"c")
            assert reader.told[:3] == ["advance", "advance", "resume"]
        else:
            generation.put(failure)
            assert reader.told == ["advance", "resume"]
        assert answer.ready()
        list(answer)
    assert answer.failure is failure


def test_reader_need_not_be_told_again_of_an_error_behind_an_output(client: EngineClient, tmp_path: Path) -> None:
    """It reads both at once, for example if its own client has been slow. Nothing follows that would wake it."""
    failure = RequestFailed("no memory")
    answer, generation = stream_of(client, tmp_path)
    with contextlib.closing(answer):
        put(generation, b"a")
        next(filter(None, answer))
        put(generation, b"b")
        generation.put(failure)
        assert b'"b"' in next(iter(answer))
        assert answer.ready()
        list(answer)
    assert answer.failure is failure


def test_reader_is_told_that_a_stream_has_been_silent(client: EngineClient, tmp_path: Path) -> None:
    answer, generation = stream_of(client, tmp_path)
    reader = Turns(answer)
    with contextlib.closing(answer):
        put(generation, b"a")
        next(filter(None, answer))
        assert answer.tell(reader)
        generation.silent_at = now = time.monotonic()
        generation.watch(now)
        wait_until(lambda: reader.told == ["resume"])
        assert next(iter(answer)) == b"", "this format has no comments"


def test_a_token_takes_few_calls(client: EngineClient, tmp_path: Path) -> None:
    """A step brings the tokens of hundreds of streams, one after the other on the same event loop."""
    answer, generation = stream_of(client, tmp_path)
    calls: list[str] = []

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls.append(frame.f_code.co_name)

    with contextlib.closing(answer):
        put(generation, b"a", logprobs=[-0.5])
        next(filter(None, answer))
        reader = Turns(answer)
        assert answer.tell(reader)
        output = TokenOutput(request_id="", token_ids=[*b"a"], logprobs=[-0.5])
        sys.setprofile(count)
        try:
            generation.put(SequenceOutput(generation.number, 0, output, 0.0))
        finally:
            sys.setprofile(None)
    assert len(reader.received) == 1
    assert len(calls) <= 28, calls


def stream_of(client: EngineClient, tmp_path: Path, **options: Any) -> tuple[Answer, InFlightRequest]:
    """An answer as JSON lines to a prompt that the engine adds nothing to."""
    prompt = b"x HANG@1"
    tokenizer = Tokenizer(tmp_path, build_byte_bundle(tmp_path))
    params = SamplingParams(**options)
    request = GenerationRequest(request_id="r", prompts=(Prompt(prompt.decode()),), sampling_params=params, stream=True)
    generation = submit(client, prompt, **options)
    answer = Answer(
        generation,
        JsonLinesFormatter(request, rendered(len(prompt), prompt.decode())),
        [SequenceText(TextRules(tokenizer, params), list(prompt))],
        Usage(started=time.monotonic()),
        RequestMetrics(tmp_path, "m"),
        Parsed(request, JsonLinesFormatter, str),
    )
    return answer, generation


def test_others_get_turns_among_many_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[float] = []
    monkeypatch.setattr("lmi_handlers.core.event_loop.time.sleep", turns.append)
    outputs = [SequenceOutput(1, index, TokenOutput(request_id="r", token_ids=[1]), 0.0) for index in range(1000)]
    assert list(_in_turns(outputs)) == outputs
    assert turns == [0] * 15
