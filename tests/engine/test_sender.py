"""Sending to an engine that reads slowly or not at all."""

from __future__ import annotations

import contextlib
import itertools
import time

import pytest
from channels import connected
from facts import raises
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from prompts import encoded

from lmi_handlers.core.errors import (
    EngineNotReady,
)
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.engine.messages import (
    Abort,
    Submit,
    WorkerMessage,
)
from lmi_handlers.engine.sender import EngineSender


def big(number: int) -> Submit:
    """A message of about a quarter of a megabyte."""
    return Submit(number, "r", encoded([100_000] * 50_000), SamplingParams())


def submit_many(sender: EngineSender, accepted: list[int]) -> None:
    for number in range(100):
        sender.submit(big(number))
        accepted.append(number)


def test_messages_to_an_engine_that_does_not_read_are_limited_and_never_block() -> None:
    with connected() as (worker, engine):
        sender = EngineSender(worker, max_bytes=4_000_000)
        started = time.monotonic()
        accepted: list[int] = []
        with raises(EngineNotReady, "not read messages", code="messages_not_read"):
            submit_many(sender, accepted)
        assert time.monotonic() - started < 5
        assert len(accepted) >= 15
        messages = engine.receive()
        assert [message.number for message in itertools.islice(messages, len(accepted))] == accepted
        sender.submit(big(100))
        assert next(messages) == big(100)
        sender.close()


def test_single_message_may_exceed_the_limit() -> None:
    with connected() as (worker, engine):
        sender = EngineSender(worker, max_bytes=1)
        sender.submit(big(1))
        assert next(engine.receive()) == big(1)
        sender.close()


def test_closed_sender_rejects_requests() -> None:
    with connected() as (worker, _):
        sender = EngineSender(worker)
        sender.close()
        sender.abort(Abort(1))
        with pytest.raises(EngineNotReady, match="has just closed"):
            sender.submit(big(1))


class Sending(RuleBasedStateMachine):
    """The engine receives all submitted requests in order, except those that were aborted before they were sent."""

    @initialize()
    def connect(self) -> None:
        self.stack = contextlib.ExitStack()
        worker, self.engine = self.stack.enter_context(connected())
        self.sender = EngineSender(worker, max_bytes=1_500_000)
        self.messages = self.engine.receive()
        self.submitted: list[int] = []
        self.given_up: set[int] = set()
        self.aborted: set[tuple[int, int]] = set()
        self.received: list[WorkerMessage] = []
        self.refused = False

    @rule(is_big=st.booleans())
    def submit(self, is_big: bool) -> None:
        number = len(self.submitted) + 1 if not self.submitted else self.submitted[-1] + 1
        try:
            self.sender.submit(big(number) if is_big else Submit(number, "r", encoded([1]), SamplingParams()))
        except EngineNotReady:
            self.refused = True
        else:
            self.submitted.append(number)

    # No preconditions or strategies depend on what was submitted, because threads decide how much that is.

    def running(self, position: int) -> int | None:
        numbers = sorted(set(self.submitted) - self.given_up)
        return numbers[position % len(numbers)] if numbers else None

    @rule(position=st.integers(0, 99))
    def give_up(self, position: int) -> None:
        if (number := self.running(position)) is not None:
            self.given_up.add(number)
            self.sender.abort(Abort(number))

    @rule(position=st.integers(0, 99))
    def abort_one(self, position: int) -> None:
        if (number := self.running(position)) is not None:
            self.sender.abort(Abort(number, 0))
            self.aborted.add((number, 0))

    @rule()
    def read(self) -> None:
        if len(self.received) < len(set(self.submitted) - self.given_up):
            # At least one more message will come, because requests that were not aborted are always sent.
            self.received.append(next(self.messages))

    def teardown(self) -> None:
        if not hasattr(self, "sender"):
            return
        last = (self.submitted[-1] if self.submitted else 0) + 1
        while True:
            try:
                self.sender.submit(Submit(last, "last", encoded([1]), SamplingParams()))
                break
            except EngineNotReady:
                self.received.append(next(self.messages))
        for message in self.messages:
            if isinstance(message, Submit) and message.number == last:
                break
            self.received.append(message)
        self.sender.close()
        self.stack.close()
        numbers = [message.number for message in self.received if isinstance(message, Submit)]
        assert numbers == sorted(numbers)
        assert set(self.submitted) - self.given_up <= set(numbers) <= set(self.submitted)
        ends = {message.number for message in self.received if isinstance(message, Abort) and message.index is None}
        assert ends == self.given_up & set(numbers), "only requests that the engine has received are aborted there"
        for position, message in enumerate(self.received):
            if isinstance(message, Abort) and message.index is None:
                assert message.number in {item.number for item in self.received[:position] if isinstance(item, Submit)}


Sending.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestSending = Sending.TestCase
