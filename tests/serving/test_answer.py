"""From the engine's outputs to the bytes of an answer."""

from __future__ import annotations

import gc
import json
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest
from engine_thread import submit
from prompts import rendered
from waiting import wait_until

from formatters.lmi.rolling import JsonFormatter
from lmi_handlers.core.errors import (
    ClientDisconnected,
    DeadlineExceeded,
    InvalidRequest,
    RequestFailed,
    TurnConflict,
)
from lmi_handlers.core.event_loop import RunBeside, at_once
from lmi_handlers.core.request import GenerationRequest, Prompt
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.core.usage import Usage
from lmi_handlers.engine.client import EngineClient
from lmi_handlers.metrics.requests import RequestMetrics
from lmi_handlers.serving.answer import Answer
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
