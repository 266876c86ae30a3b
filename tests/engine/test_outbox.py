"""Outputs of several steps are joined while a web worker does not read."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.engine.messages import (
    EngineMessage,
    Failed,
    Outputs,
    SequenceOutput,
)
from lmi_handlers.engine.outbox import join_outputs, join_runs


@st.composite
def histories(draw: st.DrawFn) -> list[EngineMessage]:
    """Messages that an engine may queue: steps of up to three sequences, some of which finish, with failures in between."""
    messages: list[EngineMessage] = []
    running = {(1, 0), (1, 1), (2, 0)}
    begun: set[tuple[int, int]] = set()
    with_logprobs = draw(st.booleans())
    for _ in range(draw(st.integers(0, 8))):
        step = []
        for number, index in draw(st.sets(st.sampled_from(sorted(running)))) if running else ():
            tokens = draw(st.lists(st.integers(0, 9), max_size=2))
            finish_reason = draw(st.sampled_from([None, FinishReason.LENGTH, FinishReason.ERROR]))
            failed = finish_reason is FinishReason.ERROR
            with_prompt = with_logprobs and (number, index) not in begun
            begun.add((number, index))
            output = TokenOutput(
                request_id=f"{number}-{index}",
                token_ids=tokens,
                logprobs=[-float(token) for token in tokens] if with_logprobs else None,
                top_logprobs=[[(token, -1.0)] for token in tokens] if with_logprobs else None,
                prompt_logprobs=[None, -2.0] if with_prompt else None,
                prompt_top_logprobs=[None, [(number, -1.0)]] if with_prompt else None,
                finish_reason=finish_reason,
                error="x" if failed else None,
                invalid_request=failed and draw(st.booleans()),
                overloaded=failed and draw(st.booleans()),
            )
            step.append(SequenceOutput(number, index, output, 0.5))
            if finish_reason is not None:
                running.discard((number, index))
        if step:
            messages.append(Outputs(step))
        if draw(st.booleans()):
            messages.append(Failed(draw(st.integers(3, 9)), "RequestFailed", "x"))
    return messages


def received_by(messages: list[EngineMessage], number: int, index: int) -> list[object]:
    """What one sequence receives: its prompt's logprobs, each token with its logprobs, and its end."""
    received: list[object] = []
    for item in (item for message in messages if isinstance(message, Outputs) for item in message.outputs):
        if (item.number, item.index) == (number, index):
            output = item.output
            if output.prompt_logprobs is not None:
                received.append((output.prompt_logprobs, output.prompt_top_logprobs))
            nothing = [None] * len(output.token_ids)
            received += zip(output.token_ids, output.logprobs or nothing, output.top_logprobs or nothing, strict=True)
            if output.finish_reason is not None:
                received.append((output.finish_reason, output.error, output.invalid_request, output.overloaded))
    return received


@given(histories())
def test_joining_outputs_loses_nothing(messages: list[EngineMessage]) -> None:
    joined = join_runs(messages)
    for sequence in ((1, 0), (1, 1), (2, 0)):
        assert received_by(joined, *sequence) == received_by(messages, *sequence)
    kinds = [type(message) for message in messages]
    runs = [kind for position, kind in enumerate(kinds) if kind is Failed or kind not in kinds[position - 1 : position]]
    assert [type(message) for message in joined] == runs
    for message in joined:
        if isinstance(message, Outputs):
            assert len({(item.number, item.index) for item in message.outputs}) == len(message.outputs)


def test_joined_outputs_keep_the_numbers_of_prompt_tokens_and_the_last_costs() -> None:
    outputs = [
        TokenOutput(request_id="r", token_ids=[5], num_prompt_tokens=39, num_cached_tokens=16),
        TokenOutput(request_id="r", token_ids=[6], num_prompt_tokens=39),
    ]
    steps = [Outputs([SequenceOutput(1, 0, output, 0.5, n + 1.0, n + 3.0)]) for n, output in enumerate(outputs)]
    (joined,) = join_outputs(steps).outputs
    seen = (joined.output.token_ids, joined.output.num_prompt_tokens, joined.output.num_cached_tokens)
    assert seen == ([5, 6], 39, 16)
    assert (joined.queue_time, joined.engine_time, joined.kv_block_time) == (0.5, 2.0, 4.0)


def test_joined_outputs_keep_why_the_last_of_them_failed() -> None:
    failed: dict[str, Any] = {"finish_reason": FinishReason.ERROR, "error": "full", "overloaded": True}
    outputs = [TokenOutput(request_id="r", token_ids=[5]), TokenOutput(request_id="r", token_ids=[], **failed)]
    (joined,) = join_outputs([Outputs([SequenceOutput(1, 0, output, 0.0)]) for output in outputs]).outputs
    assert (joined.output.error, joined.output.overloaded) == ("full", True)
