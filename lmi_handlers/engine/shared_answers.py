"""Answers that several requests get: a request that repeats another one joins its answer.

A client that gives up after its own time limit and repeats its request would otherwise have the same answer generated
again each time. Such an answer goes on without a client for some seconds, and is kept as long after its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import msgspec

from lmi_handlers.core.meter import Paid
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.usage import Owner
from lmi_handlers.engine.client_shares import ClientShares
from lmi_handlers.engine.messages import (
    Abort,
    EngineMessage,
    Failed,
    Joined,
    Outputs,
    Pays,
    SequenceOutput,
    Submit,
    Worker,
)
from lmi_handlers.engine.outbox import join

MAX_ANSWERS = 4096
"""Maximum number of answers that can be joined."""

MAX_LEFT = 32
"""Maximum number of answers that go on although all of their clients have left."""

MAX_ANSWER_BYTES = 1024 * 1024
"""An answer with more bytes of tokens and log probabilities cannot be joined any more."""

MAX_JOINS = 16
"""Requests that may join an answer. Each gets all of it from the loop at once, and waits in no queue."""

MAX_BYTES = 64 * 1024 * 1024
"""Maximum number of bytes of all answers together."""

_MIN_COST = MAX_BYTES // MAX_ANSWERS
"""Bytes that are added to the size of each answer when the shares of clients are compared."""

_RECENT = 64
"""Outputs of an answer that are kept as they are. Bytes take a fraction of their memory, and can be counted."""

_STOPPED = TokenOutput(request_id="", token_ids=[], finish_reason=FinishReason.STOP_SEQUENCE)
"""The end of a sequence whose text has ended at a stop string, which the engine does not see."""

_OUTPUTS = msgspec.msgpack.Decoder(list[SequenceOutput])


class Reader:
    """A request that gets an answer. `running` has the indices of the sequences of which it expects more.

    It was submitted `late` seconds after the one that began the answer.
    """

    def __init__(self, worker: Worker, number: int, running: Iterable[int], late: float = 0.0) -> None:
        self.worker = worker
        self.number = number
        self.running = set(running)
        self.late = late

    def own(self, output: SequenceOutput) -> SequenceOutput:
        """Return an output of the answer as one for this request."""
        if self.late == 0.0 and self.number == output.number:  # it has begun the answer
            return output
        queue_time = max(0.0, output.queue_time - self.late)
        return msgspec.structs.replace(output, number=self.number, queue_time=queue_time)


class SharedAnswer:
    """An answer, with all of its outputs so far. For the engine loop, it is the worker that has sent the request.

    `unfinished` has the indices of its sequences that have not ended. `size` is the number of bytes that it takes.
    It is not `kept` once it has become too large: nobody can join it any more. `latest` is its last output so far.

    One of the `readers` is the `payer`. When it leaves, another one pays for the rest, so that each part of an answer is
    charged once, whoever leaves it. `paid` is what those have paid who have left.
    """

    def __init__(self, key: bytes, submit: Submit, on_failure: Callable[[SharedAnswer, Failed], None]) -> None:
        self.key = key
        self.number = submit.number
        self.owner = submit.owner
        self.arrived = time.monotonic()
        self.readers: dict[tuple[Worker, int], Reader] = {}
        self.payer: Reader | None = None
        self.paid = Paid()
        self.joins = 0
        self.tokens = 0
        self.unfinished = set(range(len(submit.prompts) * submit.sampling_params.n))
        self.size = 0
        self.kept = True
        self.latest = SequenceOutput(submit.number, 0, _STOPPED, 0.0)
        self._latest_at = self._paid_until = 0.0  # seconds since it was submitted
        self._on_failure = on_failure
        self._older: list[bytes] = []
        self._recent: list[SequenceOutput] = []

    def send(self, message: EngineMessage) -> None:
        """Pass on the loop's message that the request has failed. Outputs come by `SharedAnswers.passed_on`."""
        if isinstance(message, Failed):
            self._on_failure(self, message)

    def add(self, outputs: list[SequenceOutput]) -> None:
        """Add new outputs, in order."""
        self.latest, self._latest_at = outputs[-1], time.monotonic() - self.arrived
        self.tokens += sum(len(item.output.token_ids) for item in outputs)
        self.unfinished.difference_update(_ended(outputs))
        if self.kept:
            self._recent += outputs
            if len(self._recent) >= _RECENT or not self.unfinished or _has_prompt(outputs):
                self._older.append(msgspec.msgpack.encode(join(self._recent)))
                self._recent = []
                self.size += len(self._older[-1])

    def outputs(self) -> list[SequenceOutput]:
        """Return everything so far, as one output per sequence."""
        older = [item for part in self._older for item in _OUTPUTS.decode(part)]
        return join([*older, *self._recent])

    def charge(self, reader: Reader) -> None:
        """Let a reader that has joined pay for what nobody has paid so far, and for what comes now."""
        self.payer = reader
        began = max(reader.late, self.latest.queue_time)
        overlap = max(0.0, self._paid_until - began)
        reader.worker.send(Pays(reader.number, msgspec.structs.replace(self.paid, overlap=overlap)))

    def settle(self) -> None:
        """Note that all there is so far is paid, and that nobody pays for more."""
        self.payer, self._paid_until = None, self._latest_at
        self.paid = Paid(self.tokens, self.latest.engine_time, self.latest.kv_block_time)

    def lose(self) -> None:
        """Forget the outputs."""
        self.kept, self.size, self._older, self._recent = False, 0, [], []


class SharedAnswers:
    """The answers to all requests with a `join_key`, for the engine loop.

    An answer that all clients have left goes on for `grace` seconds, and one that has ended is kept as long. `handle`
    is the loop's: it gets the requests and aborts that the answers stand for. Only the loop's thread calls it, except
    that another one may fail all requests when the engine is dead.

    Beyond the limits, the API key that takes most loses an answer: one of its tenant that takes most. A client that takes
    no more than an equal share never loses one to others.
    """

    def __init__(self, grace: float, handle: Callable[[Worker, Submit | Abort], None]) -> None:
        self._grace = grace
        self._handle = handle
        self._answers: dict[bytes, SharedAnswer] = {}  # those that can be joined, oldest first
        self._requests: dict[tuple[Worker, int], SharedAnswer] = {}
        self._left: dict[SharedAnswer, float] = {}  # until when each goes on, first one first
        self._ended: dict[SharedAnswer, float] = {}  # until when each is kept, first one first
        self._owned: dict[Owner, dict[SharedAnswer, None]] = {}  # those that can be joined, by client, oldest first
        self._costs = ClientShares()
        self._size = 0
        self.generated = 0
        """Number of tokens of all answers. Other threads read it."""

    def submit(self, worker: Worker, submit: Submit, key: bytes) -> None:
        """Begin the answer to a request, or let the request join the one that there is."""
        answer = self._answers.get(key)
        if answer is not None:
            if answer.joins < MAX_JOINS:
                self._join(answer, worker, submit.number)
                return
            self._stop_joins(answer)
        self._answers[key] = answer = SharedAnswer(key, submit, self._fail)
        self._owned.setdefault(answer.owner, {})[answer] = None
        self._costs.add(answer.owner, _MIN_COST)
        answer.payer = Reader(worker, submit.number, answer.unfinished)
        self._add_reader(answer, answer.payer)
        self._handle(answer, msgspec.structs.replace(submit, join_key=None))
        self._make_room()

    def abort(self, worker: Worker, abort: Abort) -> None:
        """Take the request that `abort` names from its answer. Others are not affected. Unknown ones are ignored."""
        answer = self._requests.get((worker, abort.number))
        if answer is None:
            return
        reader = answer.readers[worker, abort.number]
        if abort.index is None:
            self._leave(answer, reader, final=abort.final)
            return
        reader.running.discard(abort.index)
        self._stop_unwanted(answer)
        if not reader.running:
            self._remove_reader(answer, reader)

    def disconnect(self, worker: Worker) -> None:
        """Let all requests of a worker that is gone leave their answers. Their clients may come back to another worker."""
        for answer in [answer for (owner, _), answer in self._requests.items() if owner is worker]:
            for reader in [reader for reader in answer.readers.values() if reader.worker is worker]:
                self._leave(answer, reader, final=False)

    def passed_on(self, outputs: dict[Worker, list[SequenceOutput]]) -> dict[Worker, list[SequenceOutput]]:
        """Return the outputs of a step by real workers: those of an answer go to each of its requests."""
        if not self._requests and not self._left:
            return outputs
        passed: dict[Worker, list[SequenceOutput]] = {}
        for worker, batch in outputs.items():
            if isinstance(worker, SharedAnswer):
                self._add_outputs(worker, batch, passed)
            else:
                passed.setdefault(worker, []).extend(batch)
        return passed

    def expire(self, now: float) -> None:
        """Give up what nobody came back for in time, and forget what ended some time ago."""
        while self._left and next(iter(self._left.values())) <= now:
            self._give_up(next(iter(self._left)))
        while self._ended and next(iter(self._ended.values())) <= now:
            self._drop(next(iter(self._ended)))

    def give_way(self) -> bool:
        """Give up an answer without a client: the one left for longest, of the client that has most. False if there is none."""
        if not self._left:
            return False
        left = ClientShares()
        for answer in self._left:
            left.add(answer.owner, 1)
        owner = left.greediest()
        self._give_up(next(answer for answer in self._left if answer.owner == owner))
        return True

    def _join(self, answer: SharedAnswer, worker: Worker, number: int) -> None:
        self._left.pop(answer, None)
        answer.joins += 1
        reader = Reader(worker, number, answer.unfinished, time.monotonic() - answer.arrived)
        worker.send(Joined(number))
        if answer.payer is None:
            answer.charge(reader)
        if outputs := answer.outputs():
            worker.send(Outputs([reader.own(item) for item in outputs]))
        if answer.unfinished:
            self._add_reader(answer, reader)
        elif answer.payer is reader:
            answer.settle()

    def _add_outputs(
        self, answer: SharedAnswer, batch: list[SequenceOutput], passed: dict[Worker, list[SequenceOutput]]
    ) -> None:
        self._store(answer, batch)
        for reader in list(answer.readers.values()):
            own = [reader.own(item) for item in batch if item.index in reader.running]
            if own:
                passed.setdefault(reader.worker, []).extend(own)
            if ended := _ended(own):
                reader.running.difference_update(ended)
                if not reader.running:
                    self._remove_reader(answer, reader)

    def _store(self, answer: SharedAnswer, outputs: list[SequenceOutput]) -> None:
        size, tokens = answer.size, answer.tokens
        answer.add(outputs)
        if answer.size > size:
            self._size += answer.size - size
            self._costs.add(answer.owner, answer.size - size)
        self.generated += answer.tokens - tokens
        if answer.size > MAX_ANSWER_BYTES:
            self._stop_joins(answer)
        if not answer.unfinished:
            self._end(answer)
        self._make_room()

    def _stop_unwanted(self, answer: SharedAnswer) -> None:
        """End the sequences whose text is complete for each of the answer's requests: all have the same stop strings."""
        wanted = set[int]().union(*(reader.running for reader in answer.readers.values()))
        for index in sorted(answer.unfinished - wanted):
            self._handle(answer, Abort(answer.number, index))
            self._store(answer, [msgspec.structs.replace(answer.latest, index=index, output=_STOPPED)])

    def _leave(self, answer: SharedAnswer, reader: Reader, *, final: bool) -> None:
        self._remove_reader(answer, reader)
        if answer.readers:
            self._stop_unwanted(answer)
        elif final or not answer.kept:
            self._give_up(answer)
        else:
            self._left[answer] = time.monotonic() + self._grace
            if len(self._left) > MAX_LEFT:
                self.give_way()

    def _end(self, answer: SharedAnswer) -> None:
        self._left.pop(answer, None)
        if answer.kept:
            self._ended[answer] = time.monotonic() + self._grace

    def _fail(self, answer: SharedAnswer, message: Failed) -> None:
        """Tell all requests, and forget the answer: a request that comes later is tried again."""
        for reader in list(answer.readers.values()):
            self._remove_reader(answer, reader)
            reader.worker.send(msgspec.structs.replace(message, number=reader.number))
        self._drop(answer)

    def _give_up(self, answer: SharedAnswer) -> None:
        self._drop(answer)
        self._handle(answer, Abort(answer.number))

    def _stop_joins(self, answer: SharedAnswer) -> None:
        """Let nobody join an answer any more. If all clients have left it, nobody can come back."""
        if answer in self._left:
            self._give_up(answer)
        else:
            self._drop(answer)

    def _make_room(self) -> None:
        """Forget answers until the others are within the limits.

        Of the client that takes most, it is the oldest answer that has ended, or else the oldest that nobody waits for, or
        else the oldest.
        """
        while self._size > MAX_BYTES or len(self._answers) > MAX_ANSWERS:
            own = self._owned[self._costs.greediest()]
            oldest = (
                next((answer for answer in own if answer in some), None) for some in (self._ended, self._left, own)
            )
            self._stop_joins(next(answer for answer in oldest if answer is not None))

    def _drop(self, answer: SharedAnswer) -> None:
        """Forget what an answer has so far, so that nobody can join it. Those who get it are not affected."""
        self._left.pop(answer, None)
        self._ended.pop(answer, None)
        if answer.kept:
            del self._answers[answer.key]
            self._size -= answer.size
            self._costs.add(answer.owner, -answer.size - _MIN_COST)
            del self._owned[answer.owner][answer]
            if not self._owned[answer.owner]:
                del self._owned[answer.owner]
            answer.lose()

    def _add_reader(self, answer: SharedAnswer, reader: Reader) -> None:
        answer.readers[reader.worker, reader.number] = reader
        self._requests[reader.worker, reader.number] = answer

    def _remove_reader(self, answer: SharedAnswer, reader: Reader) -> None:
        del answer.readers[reader.worker, reader.number]
        del self._requests[reader.worker, reader.number]
        if answer.payer is reader:
            answer.settle()
            if (other := next(iter(answer.readers.values()), None)) is not None:
                answer.charge(other)


def _ended(outputs: list[SequenceOutput]) -> list[int]:
    """Return the indices of the sequences that end with these outputs."""
    return [item.index for item in outputs if item.output.finish_reason is not None]


def _has_prompt(outputs: list[SequenceOutput]) -> bool:
    """Tell whether any of the outputs has log probabilities of a prompt, which may take more than all others."""
    return any(item.output.prompt_logprobs is not None for item in outputs)
