"""Requests that join the answer of an equal one: in the engine loop, on the echo backend."""

from __future__ import annotations

import queue
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from prompts import encoded
from recording_echo import EOS, RecordingEcho, RecordingWorker

from lmi_handlers.core.meter import Paid
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import EncodedPrompt
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.core.usage import Owner
from lmi_handlers.engine import shared_answers
from lmi_handlers.engine.admission import RollingBatch
from lmi_handlers.engine.loop import Disconnected, EngineLoop, Inbox
from lmi_handlers.engine.messages import Abort, Failed, Joined, Outputs, Pays, SequenceOutput, Submit, join_key

BATCH = 3
FOREVER = 1e9


def asked(identity: str, prompt: bytes, number: int = 1, **params: Any) -> Submit:
    """A request with an identity."""
    submit = Submit(number, f"r{number}", encoded(prompt), SamplingParams(**params))
    return msgspec.structs.replace(submit, join_key=join_key(submit, identity.encode()))


class Client:
    """A request and what it has received. It stops each sequence after `stop` tokens, as at a stop string."""

    def __init__(self, engine: Engine, submit: Submit, worker: RecordingWorker | None = None, stop: int = 99) -> None:
        self.engine = engine
        self.worker = worker or RecordingWorker(engine.backend)
        self.submit = submit
        self.stop = stop
        self.gone = False
        self.forgotten = False
        self.joined = False
        self.paid: Paid | None = None
        self.received = 0
        self.error: str | None = None
        self.tokens: list[list[int]] = [[] for _ in range(submit.sampling_params.n)]
        self.ends: dict[int, FinishReason | None] = {}
        engine.inbox.put((self.worker, submit))
        engine.clients.append(self)

    def leave(self, *, final: bool = False) -> None:
        self.gone = True
        self.engine.inbox.put((self.worker, Abort(self.submit.number, final=final)))

    @property
    def ended(self) -> bool:
        return self.gone or self.error is not None or len(self.ends) == len(self.tokens)

    @property
    def charged(self) -> int:
        """Tokens that it has to pay."""
        if not self.joined:
            return self.received
        return 0 if self.paid is None else max(0, self.received - self.paid.tokens)

    def take(self, item: SequenceOutput) -> None:
        assert not self.forgotten, "an output after the client was known to have left"
        assert item.queue_time >= 0
        self.received += len(item.output.token_ids)
        if self.gone:
            return
        if item.index in self.ends:
            assert self.ends[item.index] is None, "an output after the last one"
            return  # generated before the abort had arrived
        self.tokens[item.index] += item.output.token_ids
        if item.output.finish_reason is not None:
            self.ends[item.index] = item.output.finish_reason
        elif len(self.tokens[item.index]) >= self.stop:
            self.ends[item.index] = None
            self.engine.inbox.put((self.worker, Abort(self.submit.number, item.index)))


class Engine:
    """A loop with its clients."""

    def __init__(self, *, grace: float = FOREVER, batch: int = BATCH, queue_size: int = 1000) -> None:
        self.inbox: Inbox = queue.SimpleQueue()
        self.backend = RecordingEcho()
        self.loop = EngineLoop(self.backend, RollingBatch(batch), queue_size, self.inbox, retry_grace=grace)
        self.clients: list[Client] = []
        self._read: dict[RecordingWorker, int] = {}

    def turn(self) -> None:
        """Run the loop once, unless it would wait, and give the clients what it has sent."""
        if self.inbox.empty() and not self.backend.running:
            self.inbox.put((RecordingWorker(self.backend), Abort(0)))
        self.loop.turn()
        by_number = {(client.worker, client.submit.number): client for client in self.clients}
        for worker in dict.fromkeys(client.worker for client in self.clients):
            start, self._read[worker] = self._read.get(worker, 0), len(worker.messages)
            for message in worker.messages[start:]:
                if isinstance(message, Outputs):
                    for item in message.outputs:
                        by_number[worker, item.number].take(item)
                elif isinstance(message, Failed):
                    by_number[worker, message.number].error = message.error
                elif isinstance(message, Pays):
                    assert by_number[worker, message.number].joined
                    by_number[worker, message.number].paid = message.paid
                else:
                    assert isinstance(message, Joined)
                    client = by_number[worker, message.number]
                    assert not client.joined
                    assert client.tokens == [[]] * len(client.tokens)
                    client.joined = True
        for client in self.clients:
            client.forgotten = client.gone

    def finish(self) -> None:
        """Run until every client has its answer."""
        for _ in range(1000):
            if all(client.ended for client in self.clients):
                return
            self.turn()
        raise AssertionError("a request never ended")

    def client(self, submit: Submit, **settings: Any) -> Client:
        return Client(self, submit, **settings)


def answer(prompt: bytes) -> list[int]:
    return [*prompt, EOS]


def test_four_repeats_cost_one_generation() -> None:
    engine = Engine()
    for _ in range(4):
        engine.client(asked("call", b"an answer"))
        engine.turn()
        engine.turn()
    engine.finish()
    assert [client.tokens for client in engine.clients] == [[answer(b"an answer")]] * 4
    assert [client.joined for client in engine.clients] == [False, True, True, True]
    assert len(engine.backend.joined) == 1
    assert engine.loop.shared_tokens == len(answer(b"an answer"))
    late = engine.client(asked("call", b"an answer"))
    engine.finish()
    assert (late.tokens, late.ends, late.joined) == ([answer(b"an answer")], {0: FinishReason.EOS_TOKEN}, True)
    assert len(engine.backend.joined) == 1


def test_a_thousand_different_requests_join_none() -> None:
    engine = Engine(batch=1000)
    for number in range(500):
        engine.client(asked("same", b"%d" % number))
        engine.client(asked(f"other {number}", b"same"))
    engine.finish()
    assert not any(client.joined for client in engine.clients)
    assert len(engine.backend.joined) == 1000
    assert [client.tokens for client in engine.clients[::2]] == [[answer(b"%d" % number)] for number in range(500)]


def test_client_that_leaves_and_comes_back() -> None:
    engine = Engine()
    first = engine.client(asked("call", b"an answer"))
    engine.turn()
    engine.turn()
    first.leave()
    engine.turn()
    again = engine.client(asked("call", b"an answer"))
    engine.finish()
    assert (again.tokens, again.joined) == ([answer(b"an answer")], True)
    assert first.tokens == [answer(b"an answer")[:2]]
    assert len(engine.backend.joined) == 1


def test_each_token_is_paid_once() -> None:
    engine = Engine()
    first = engine.client(asked("call", b"an answer"))
    engine.turn()
    engine.turn()
    second, third = (engine.client(asked("call", b"an answer")) for _ in range(2))
    engine.turn()
    first.leave()  # the second one pays from now on, up to its own end
    engine.turn()
    engine.turn()
    second.leave()
    third.leave()
    for _ in range(20):
        engine.turn()  # the rest is generated for nobody
    last, later = (engine.client(asked("call", b"an answer")) for _ in range(2))
    engine.finish()
    assert all(client.received > client.charged > 0 for client in (second, last))
    assert (third.charged, later.charged) == (0, 0)
    assert first.charged + second.charged + last.charged == engine.loop.shared_tokens == len(answer(b"an answer"))
    assert second.paid is not None
    assert last.paid is not None
    assert second.paid.overlap > 0 == last.paid.overlap
    assert 0 < last.paid.engine_time < engine.loop.busy_time


def test_nothing_is_paid_by_a_client_that_left_before_the_begin() -> None:
    engine = Engine(batch=1)
    running = engine.client(asked("other", b"abc"))
    first, second = (engine.client(asked("call", b"an answer")) for _ in range(2))
    engine.turn()
    first.leave()
    engine.finish()
    assert (second.joined, second.paid) == (True, Paid())
    assert running.charged + second.charged == engine.loop.shared_tokens


def test_only_so_many_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks more often waits in the queue like others."""
    monkeypatch.setattr(shared_answers, "MAX_JOINS", 2)
    engine = Engine()
    for _ in range(4):
        engine.client(asked("call", b"abc"))
        engine.turn()
    engine.finish()
    for _ in range(3):
        engine.client(asked("call", b"abc"))
        engine.finish()
    assert [client.joined for client in engine.clients] == [False, True, True] * 2 + [False]
    assert all(client.tokens == [answer(b"abc")] for client in engine.clients)
    left = engine.client(asked("left", b"an answer"))
    for _ in range(3):
        engine.turn()
        left.leave()
        left = engine.client(asked("left", b"an answer"))
    engine.turn()
    assert (left.joined, len(engine.backend.running)) == (False, 1)  # the other one has nobody that could come back
    engine.finish()


def test_client_that_comes_back_after_the_end() -> None:
    engine = Engine()
    engine.client(asked("call", b"abc")).leave()
    for _ in range(10):
        engine.turn()
    assert not engine.backend.running
    again = engine.client(asked("call", b"abc"))
    engine.finish()
    assert again.tokens == [answer(b"abc")]
    assert len(engine.backend.joined) == 1


@pytest.mark.parametrize(("grace", "final"), [(0.0, False), (FOREVER, True)])
def test_answer_that_nobody_waits_for_is_given_up(grace: float, final: bool) -> None:
    engine = Engine(grace=grace)
    engine.client(asked("call", b"an answer"))
    engine.turn()
    engine.clients[0].leave(final=final)
    engine.turn()
    engine.turn()
    assert not engine.backend.running
    again = engine.client(asked("call", b"an answer"))
    engine.finish()
    assert (again.tokens, again.joined) == ([answer(b"an answer")], False)


def test_sequence_goes_on_until_every_client_has_found_its_stop_string() -> None:
    engine = Engine()
    first, second = (engine.client(asked("call", b"an answer"), stop=stop) for stop in (2, 4))
    engine.finish()
    engine.turn()
    assert (len(first.tokens[0]), len(second.tokens[0])) == (2, 4)
    assert not engine.backend.running
    late = engine.client(asked("call", b"an answer"))
    engine.finish()
    assert late.tokens == [answer(b"an answer")[: len(late.tokens[0])]]
    assert 4 <= len(late.tokens[0]) < len(answer(b"an answer"))
    assert late.ends == {0: FinishReason.STOP_SEQUENCE}
    assert len(engine.backend.joined) == 1


def test_worker_that_is_gone_leaves_its_answers_to_others() -> None:
    engine = Engine()
    first = engine.client(asked("call", b"an answer"))
    engine.turn()
    first.gone = True
    engine.inbox.put((first.worker, Disconnected()))
    engine.turn()
    again = engine.client(asked("call", b"an answer"))
    engine.finish()
    assert (again.tokens, again.joined) == ([answer(b"an answer")], True)


def test_answers_without_a_client_give_way_when_the_queue_is_full() -> None:
    engine = Engine(batch=1, queue_size=1)
    left = engine.client(asked("call", b"an answer"))
    engine.turn()
    left.leave()
    engine.turn()
    waiting = engine.client(asked("waits", b"b"))
    engine.turn()
    assert engine.backend.running.keys() == {"1-0"}  # it does not give way to one that may wait
    last = engine.client(asked("last", b"c"))
    engine.finish()
    assert (waiting.tokens, last.tokens) == ([answer(b"b")], [answer(b"c")])
    assert left.tokens[0] != answer(b"an answer")


def owned(owner: Owner, identity: str, prompt: bytes = b"an answer", **params: Any) -> Submit:
    return msgspec.structs.replace(asked(f"{owner} {identity}", prompt, **params), owner=owner)


@pytest.mark.parametrize(
    ("owners", "running"),
    [
        ([Owner()] * 3, {"2-0", "3-0"}),
        ([Owner("red"), Owner("blue"), Owner("blue")], {"1-0", "3-0"}),
        ([Owner("red"), Owner("blue", "1"), Owner("blue", "2")], {"1-0", "3-0"}),
    ],
)
def test_only_so_many_go_on_without_a_client(
    monkeypatch: pytest.MonkeyPatch, owners: list[Owner], running: set[str]
) -> None:
    """The API key that has most of them loses its oldest one, whatever tenants it names."""
    monkeypatch.setattr(shared_answers, "MAX_LEFT", 2)
    engine = Engine()
    for number, owner in enumerate(owners):
        engine.client(owned(owner, f"call {number}")).leave()
        engine.turn()
    assert engine.backend.running.keys() == running


MODEST = Owner("modest", "team")
OTHERS = [Owner("greedy", f"tenant {number}") for number in range(9)] + [Owner("other")]


@pytest.mark.parametrize(("others", "share"), [(OTHERS, 3), ([Owner("modest", f"{n}") for n in range(2)], 3)])
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_who_takes_no_more_than_a_share_loses_nothing(others: list[Owner], share: int, data: st.DataObject) -> None:
    """Others have any number of answers, and leave or get them. There are `share` keys, or tenants of the same one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_answers, "MAX_LEFT", share)
        patch.setattr(shared_answers, "MAX_ANSWERS", 2 * share)
        engine = Engine()
        engine.client(owned(MODEST, "has ended"))
        engine.finish()
        engine.client(owned(MODEST, "has left")).leave()
        for number in range(data.draw(st.integers(share, 4 * share))):
            client = engine.client(owned(data.draw(st.sampled_from(others)), f"{number}"))
            if data.draw(st.booleans()):
                client.leave()
            for _ in range(data.draw(st.integers(0, 9))):
                engine.turn()
        again = [engine.client(owned(MODEST, name)) for name in ("has ended", "has left")]
        engine.finish()
        assert [client.joined for client in again] == [True, True]


def test_large_answers_give_way_to_many_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_answers, "_MIN_COST", 1)
    monkeypatch.setattr(shared_answers, "MAX_BYTES", 1000)
    engine = Engine()
    for number in range(5):
        engine.client(owned(MODEST, f"{number}", b"a"))
    for number in range(9):
        engine.client(owned(OTHERS[number % 3], f"{number}", b"large", n=8))
    engine.finish()
    again = [engine.client(owned(MODEST, f"{number}", b"a")) for number in range(5)]
    engine.finish()
    assert all(client.joined for client in again)


def test_failure_is_told_to_all_and_the_next_request_tries_again() -> None:
    engine = Engine()
    numbers = [1, 2]
    worker = RecordingWorker(engine.backend)
    for number in numbers:
        engine.client(asked("call", b"RAISE@2", number), worker=worker)
    engine.finish()
    assert [client.error for client in engine.clients] == ["RequestFailed"] * 2
    assert [client.joined for client in engine.clients] == [False, True]
    again = engine.client(asked("call", b"RAISE@2"))
    engine.finish()
    assert (again.error, again.joined) == ("RequestFailed", False)


def test_engine_that_dies_fails_all() -> None:
    engine = Engine()
    for _ in range(2):
        engine.client(asked("call", b"CRASH@2"))
    with pytest.raises(Exception, match="crashed"):
        engine.loop.run()
    assert [client.worker.messages[-1].error for client in engine.clients] == ["EngineDead"] * 2  # type: ignore[union-attr]


def test_answer_that_is_too_large_is_not_joined_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_answers, "_RECENT", 1)
    monkeypatch.setattr(shared_answers, "MAX_ANSWER_BYTES", 100)
    engine = Engine()
    first = engine.client(asked("call", b"a long answer"))
    for _ in range(8):
        engine.turn()
    second = engine.client(asked("call", b"a long answer"))
    engine.turn()
    assert not second.joined
    first.leave()  # what nobody can join has nobody to wait for
    engine.turn()
    assert engine.backend.running.keys() == {"2-0"}
    engine.finish()
    assert second.tokens == [answer(b"a long answer")]


@pytest.mark.parametrize("limit", ["MAX_ANSWERS", "MAX_BYTES"])
def test_what_has_ended_is_forgotten_first(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    engine = Engine()
    engine.client(asked("ended", b"x"))
    engine.finish()
    engine.client(asked("running", b"an answer"))
    monkeypatch.setattr(shared_answers, limit, 1)
    engine.turn()
    again = [engine.client(asked(name, prompt)) for name, prompt in (("running", b"an answer"), ("ended", b"x"))]
    engine.finish()
    assert [client.joined for client in again] == [True, False]
    assert [client.tokens for client in again] == [[answer(b"an answer")], [answer(b"x")]]


def test_log_probabilities_are_those_of_the_first() -> None:
    """The history is kept as bytes: nothing of an output is lost or rounded."""
    output = TokenOutput(
        request_id="1-0",
        token_ids=[5, 2**31],
        logprobs=[-0.1, -1 / 3],
        top_logprobs=[[(5, -0.1)], [(7, -2.5e-9)]],
        prompt_logprobs=[None, -0.7],
        num_cached_tokens=3,
    )
    kept = shared_answers.SharedAnswer(b"key", asked("call", b"x"), lambda *_: None)
    kept.add([SequenceOutput(1, 0, output, 0.5)])
    kept.add(
        [SequenceOutput(1, 0, TokenOutput(request_id="1-0", token_ids=[EOS], finish_reason=FinishReason.LENGTH), 0.5)]
    )
    [item] = kept.outputs()
    assert item.queue_time == 0.5
    assert item.output.token_ids == [*output.token_ids, EOS]
    assert (item.output.logprobs, item.output.top_logprobs) == (output.logprobs, output.top_logprobs)
    assert item.output.prompt_logprobs == output.prompt_logprobs
    assert (item.output.num_cached_tokens, item.output.finish_reason) == (3, FinishReason.LENGTH)


def test_only_equal_requests_have_the_same_key() -> None:
    def key(identity: bytes = b"i", **changed: Any) -> bytes:
        submit = Submit(1, "r", [EncodedPrompt([1, 2])], SamplingParams(seed=1))
        return join_key(msgspec.structs.replace(submit, **changed), identity)

    prompts = ([1], [1, 2, 3])
    different = [
        key(),
        key(b"j"),
        *(key(prompts=[EncodedPrompt(prompt)]) for prompt in prompts),
        key(prompts=[EncodedPrompt([1, 2])] * 2),
        *(key(prompts=[EncodedPrompt([1, 2], adapter="a", adapter_digest=files)]) for files in ("1", "2")),
        key(prompts=[EncodedPrompt([1, 2], cache_salt="a")]),
        key(sampling_params=SamplingParams(seed=2)),
        key(sampling_params=SamplingParams(seed=1, stop=("x",))),
        key(generated=(1,)),
    ]
    assert len(set(different)) == len(different)
    assert key() == key(number=2, request_id="other", priority=3)


REQUESTS = [
    ("a", b"abcdefgh", 1, 99),
    ("b", b"abcdefgh", 1, 99),
    ("a", b"xyz", 2, 99),
    ("a", b"stopped", 2, 3),
    (None, b"abcdefgh", 2, 99),
]
"""Identity, prompt, `n`, and the number of tokens after which each client finds a stop string."""


class Clients(RuleBasedStateMachine):
    """Clients that send equal requests through three web workers, leave, and come back."""

    @initialize()
    def start(self) -> None:
        self.engine = Engine()
        self.workers = [RecordingWorker(self.engine.backend) for _ in range(3)]
        self.asked: dict[Client, tuple[str | None, bytes, int, int]] = {}

    @rule(worker=st.integers(0, 2), request=st.sampled_from(REQUESTS))
    def submit(self, worker: int, request: tuple[str | None, bytes, int, int]) -> None:
        identity, prompt, n, stop = request
        number = len(self.asked) + 1
        submit = asked(identity or "", prompt, number, n=n)
        if identity is None:
            submit = msgspec.structs.replace(submit, join_key=None)
        self.asked[self.engine.client(submit, worker=self.workers[worker], stop=stop)] = request

    @precondition(lambda self: any(not client.ended for client in self.asked))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from([client for client in self.asked if not client.ended])).leave()

    @rule(worker=st.integers(0, 2))
    def disconnect(self, worker: int) -> None:
        gone = self.workers[worker]
        self.engine.inbox.put((gone, Disconnected()))
        for client in self.asked:
            client.gone = client.gone or client.worker is gone
        self.workers[worker] = RecordingWorker(self.engine.backend)

    @rule(turns=st.integers(1, 6))
    def turn(self, turns: int) -> None:
        for _ in range(turns):
            self.engine.turn()

    @invariant()
    def each_sees_the_answer_from_its_beginning(self) -> None:
        for client, (_, prompt, _, _) in self.asked.items():
            assert client.error is None
            for tokens in client.tokens:
                assert tokens == answer(prompt)[: len(tokens)]

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.engine.finish()
        for client, (_, prompt, n, stop) in self.asked.items():
            if not client.gone:
                assert client.ends.keys() == set(range(n))
                for index, end in client.ends.items():
                    whole = end is FinishReason.EOS_TOKEN
                    assert client.tokens[index] == answer(prompt) if whole else len(client.tokens[index]) >= stop
        shared = {request for request in self.asked.values() if request[0] is not None}
        charged = sum(client.charged for client, request in self.asked.items() if request[0] is not None)
        assert charged <= self.engine.loop.shared_tokens
        plain = [client for client, request in self.asked.items() if request[0] is None]
        begun = len(self.engine.backend.joined)
        requests = list(self.asked.values())
        most = sum(one[2] * (1 + requests.count(one) // shared_answers.MAX_JOINS) for one in shared)
        most += sum(len(client.tokens) for client in plain)
        assert begun <= most
        for _ in range(40):  # what goes on without a client comes to its end, too
            self.engine.turn()
        assert not self.engine.backend.running


Clients.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestClients = Clients.TestCase
