"""The shadow engine as a web worker sees it: a share of the answers goes through it once they have been sent.

It reads the prompt and the answer's tokens as one prompt (teacher forcing), in a single pass, and says how probable each
token of the answer was and which one it would have chosen. Nothing waits for it. Only token ids and numbers are passed on,
and no text is.
"""

from __future__ import annotations

import array
import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import Capabilities, check_prompt, check_sampling_params
from lmi_handlers.core.deadline import Deadline
from lmi_handlers.core.errors import ClientDisconnected, LMIError, RequestFailed
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.request import EncodedPrompt, GenerationRequest
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.engine.client import EngineClient
from lmi_handlers.engine.messages import Loading, Ready, SequenceOutput
from lmi_handlers.metrics.requests import RequestMetrics
from lmi_handlers.metrics.shadow import ShadowComparison, ShadowOutcome

MAX_WAITING = 16
"""Answers per web worker that wait to be compared."""

MAX_TOKENS = 8192
"""Tokens of a prompt and its answer. The log probabilities of more would take the web worker too long to read."""

_PAUSE = 0.1
"""Seconds between two looks at whether the model's own engines have room."""

_SAME_LOT = 600.0
"""Seconds for which equal prompts are either chosen or not."""

_MOST_NATS = 100.0
"""A token cannot be less probable than e to the power of minus this: one that is impossible would hide all others."""

_CHANGES_CHOICE = (
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "structured_outputs",
    "watermark",
    "thinking_token_budget",
)
_PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_tokens": 0}

logger = logging.getLogger(__name__)


class Sample:
    """An answer that is to be compared: the first sequence of its request, as it is generated.

    `request` is what the engine gets instead of the client's request: it also asks for the log probabilities of the
    tokens, if the engine has any. `feed` leaves them out of what the client gets.
    """

    def __init__(self, shadow: Shadow, request: GenerationRequest, prompt: Sequence[int], *, asks: bool) -> None:
        """`asks` tells whether the engine is asked for log probabilities although the client has not."""
        params = request.sampling_params
        if asks:
            request = msgspec.structs.replace(request, sampling_params=msgspec.structs.replace(params, logprobs=0))
        self.request = request
        self.prompt = prompt
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.is_greedy = is_greedy(params)
        self.has_logprobs = request.sampling_params.logprobs is not None
        self._shadow = shadow
        self._asks = asks

    def feed(self, item: SequenceOutput) -> SequenceOutput:
        """Note the tokens of an output, and return what the client is to get."""
        output = item.output
        if item.index == 0 and len(self.prompt) + len(self.token_ids) <= MAX_TOKENS:
            self.token_ids += output.token_ids
            self.logprobs += output.logprobs or ()
        if not self._asks or output.logprobs is None:
            return item
        return msgspec.structs.replace(item, output=msgspec.structs.replace(output, logprobs=None, top_logprobs=None))

    def end(self) -> None:
        """Hand the answer over: it is complete."""
        self._shadow.compare(self)


class Shadow:
    """Takes a share of the answers and compares them, one at a time, while the model's own engines have room.

    `has_room` tells whether they have.
    """

    def __init__(
        self, properties: ServingProperties, socket_path: Path, metrics: RequestMetrics, has_room: Callable[[], bool]
    ) -> None:
        self._name = properties.name
        self._share = properties.shadow_share
        self._timeout = properties.predict_timeout
        self._metrics = metrics
        self._has_room = has_room
        self._client = EngineClient(socket_path, self._on_announcement, properties.stall_timeout)
        self._capabilities: Capabilities | None = None
        self._waiting: deque[Sample] = deque()
        self._arrived = threading.Event()
        self._closed = False

    def start(self) -> None:
        """Connect in the background, and wait for answers."""
        self._client.start()
        threading.Thread(target=self._run, name="shadow", daemon=True).start()

    def close(self) -> None:
        """Disconnect. What has not been compared is forgotten."""
        self._closed = True
        self._arrived.set()
        self._client.close()

    def sample(
        self, request: GenerationRequest, prompts: Sequence[EncodedPrompt], capabilities: Capabilities
    ) -> Sample | None:
        """Return a sample for this request's answer, or None to leave it out. `capabilities` are those of the model's engine.

        A request with a salt asks that nothing of it is shared, and is left out. So are adapters and images, which the
        shadow need not have, and beam search, whose answers are no single sequence.
        """
        prompt = prompts[0]
        if (
            request.pooling_params is not None
            or request.beam_search is not None
            or prompt.cache_salt is not None
            or prompt.adapter is not None
            or prompt.media_prompt is not None
            or _lot(prompt, time.time()) >= self._share
        ):
            return None
        if not self._serves:
            self._metrics.shadow_ended(ShadowOutcome.NOT_READY)
            return None
        asks = request.sampling_params.logprobs is None and "logprobs" not in capabilities.unsupported
        return Sample(self, request, [*prompt.token_ids, *request.generated], asks=asks)

    def compare(self, sample: Sample) -> None:
        """Queue a complete answer. It is dropped if too many wait, or the shadow engine does not serve. Never waits."""
        shadow = self._capabilities
        length = len(sample.prompt) + len(sample.token_ids)
        if shadow is None or not self._serves:
            self._metrics.shadow_ended(ShadowOutcome.NOT_READY)
        elif not sample.token_ids or length > min(MAX_TOKENS, shadow.max_input_tokens):
            self._metrics.shadow_ended(ShadowOutcome.TOO_LONG)
        elif len(self._waiting) >= MAX_WAITING:
            self._metrics.shadow_ended(ShadowOutcome.DROPPED)
        else:
            self._waiting.append(sample)
            self._arrived.set()

    @property
    def _serves(self) -> bool:
        return self._capabilities is not None and self._client.status.accepts

    def _run(self) -> None:
        while not self._closed:
            self._arrived.wait()
            self._arrived.clear()
            while self._waiting and not self._closed:
                time.sleep(_PAUSE)  # the last bytes of the answer go first
                if self._has_room():
                    self._compare_next()

    def _compare_next(self) -> None:
        """Compare the answer that has waited longest. It stays there if requests of clients come in between."""
        sample = self._waiting[0]
        try:
            self._metrics.shadow_compared(self._read(sample))
        except ClientDisconnected:  # the request that `has_room` gave up
            return
        except Exception as error:  # noqa: BLE001  the thread must go on, whatever an engine answers
            self._metrics.shadow_ended(ShadowOutcome.FAILED)
            cause = str(error) if isinstance(error, LMIError) else f"{type(error).__name__}: {error}"
            extra = {"model": self._name, "request_id": sample.request.request_id, "cause": cause}
            logger.warning("an answer could not be compared with the shadow", extra=extra)
        self._waiting.popleft()

    def _read(self, sample: Sample) -> ShadowComparison:
        """Let the shadow engine read an answer. Raises `LMIError`."""
        token_ids = [*sample.prompt, *sample.token_ids]
        if (capabilities := self._capabilities) is not None:
            check_prompt(token_ids, capabilities)
            check_sampling_params(_PASS, capabilities)
        if sample.has_logprobs and len(sample.logprobs) != len(sample.token_ids):  # it shares another request's answer
            raise RequestFailed("the answer came without the log probabilities of its tokens")
        request = GenerationRequest(request_id=f"shadow-{sample.request.request_id}", prompts=(), sampling_params=_PASS)
        started = time.monotonic()
        output, waited = None, 0.0
        with self._client.submit(
            [EncodedPrompt(token_ids)], request, Deadline(started + self._timeout, self._has_room)
        ) as generation:
            for batch in generation:
                for item in batch:
                    if item.output.prompt_logprobs is not None:
                        output, waited = item.output, item.queue_time
        if output is None:
            raise RequestFailed("the shadow engine gave no log probabilities")
        comparison = compared(sample, output, time.monotonic() - started - waited)
        logger.info(
            "compared with the shadow",
            extra={"model": self._name, "request_id": sample.request.request_id, **comparison.fields},
        )
        return comparison

    def _on_announcement(self, message: Loading | Ready) -> None:
        self._capabilities = message.capabilities if isinstance(message, Ready) else None


def _lot(prompt: EncodedPrompt, now: float) -> float:
    """Return a number from 0 to 1 by which a request is chosen: a client's repetition of the request has the same one.

    So both ask the engine for the same, and may share an answer. Later, the same prompt may be chosen.
    """
    period = int(now // _SAME_LOT).to_bytes(8, "little")
    digest = hashlib.blake2b(array.array("I", prompt.token_ids).tobytes(), digest_size=4, salt=period).digest()
    return int.from_bytes(digest, "little") / 2**32


def compared(sample: Sample, output: TokenOutput, seconds: float) -> ShadowComparison:
    """Compare the tokens of an answer with what the shadow engine says of them."""
    begin = len(sample.prompt)
    logprobs, tops = (output.prompt_logprobs or [])[begin:], (output.prompt_top_logprobs or [])[begin:]
    best = [top[0][0] if top else None for top in tops]
    return ShadowComparison(
        tokens=len(sample.token_ids),
        agreeing=sum(token == other for token, other in zip(sample.token_ids, best, strict=True)),
        shadow_nats=sum(map(_nats, logprobs)),
        model_nats=sum(map(_nats, sample.logprobs)) if sample.has_logprobs else None,
        is_greedy=sample.is_greedy,
        read_tokens=begin + len(sample.token_ids),
        seconds=seconds,
    )


def is_greedy(params: SamplingParams) -> bool:
    """Tell whether each token was the most probable one, and nothing else has changed the choice."""
    changed = any(getattr(params, name) not in (None, False, ()) for name in _CHANGES_CHOICE)
    return params.greedy and not changed and all(getattr(params, name) == off for name, off in _PENALTIES.items())


def _nats(logprob: float | None) -> float:
    return min(_MOST_NATS, max(0.0, -(logprob or 0.0)))


_PASS = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1)
"""Engines generate at least one token, which costs nothing after the prompt."""
