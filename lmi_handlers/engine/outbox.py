"""Joins the outputs of several steps for a web worker that falls behind."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from typing import TypeVar

from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.engine.messages import EngineMessage, Outputs, SequenceOutput

T = TypeVar("T")


def join_runs(messages: list[EngineMessage]) -> list[EngineMessage]:
    """Return the messages in order, with each run of `Outputs` joined into one.

    A worker that keeps up gets one message per step. For a worker that falls behind, the tokens of several steps are
    joined into one output per sequence, which costs a fraction of rendering and sending them one by one.
    """
    if len(messages) == 1:
        return messages
    joined: list[EngineMessage] = []
    for joinable, run in itertools.groupby(messages, lambda message: isinstance(message, Outputs)):
        if joinable:
            joined.append(join_outputs([message for message in run if isinstance(message, Outputs)]))
        else:
            joined += run
    return joined


def join_outputs(steps: list[Outputs]) -> Outputs:
    """Join the outputs of consecutive `steps` into one output per sequence."""
    if len(steps) == 1:
        return steps[0]
    return Outputs(join([output for step in steps for output in step.outputs]))


def join(outputs: Iterable[SequenceOutput]) -> list[SequenceOutput]:
    """Join `outputs`, in the order in which they were generated, into one output per sequence."""
    parts: defaultdict[tuple[int, int], list[SequenceOutput]] = defaultdict(list)
    for output in outputs:
        parts[output.number, output.index].append(output)
    return [_join(parts_of_one) for parts_of_one in parts.values()]


def _join(parts: list[SequenceOutput]) -> SequenceOutput:
    if len(parts) == 1:
        return parts[0]
    outputs = [part.output for part in parts]
    joined = TokenOutput(
        request_id=outputs[0].request_id,
        token_ids=[token_id for output in outputs for token_id in output.token_ids],
        logprobs=_chain([output.logprobs for output in outputs]),
        top_logprobs=_chain([output.top_logprobs for output in outputs]),
        prompt_logprobs=outputs[0].prompt_logprobs,
        prompt_top_logprobs=outputs[0].prompt_top_logprobs,
        finish_reason=outputs[-1].finish_reason,
        error=outputs[-1].error,
        invalid_request=outputs[-1].invalid_request,
        invalid_field=outputs[-1].invalid_field,
        overloaded=outputs[-1].overloaded,
        num_prompt_tokens=outputs[0].num_prompt_tokens,
        num_cached_tokens=outputs[0].num_cached_tokens,
    )
    last = parts[-1]
    return SequenceOutput(last.number, last.index, joined, last.queue_time, last.engine_time, last.kv_block_time)


def _chain(lists: list[list[T] | None]) -> list[T] | None:
    """Return one list of all items, or None if every list is None."""
    if all(values is None for values in lists):
        return None
    return [value for values in lists for value in values or ()]
