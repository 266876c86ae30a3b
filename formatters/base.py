"""The interface that every wire format implements, and what the formats share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import msgspec
from msgspec import UNSET, UnsetType

from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token
from lmi_handlers.core.request import GenerationRequest, RenderedPrompt

encode = msgspec.json.Encoder().encode
"""Encodes a response as compact JSON: fields in the order of their declaration, without those that are UNSET."""


_EVENTS = "text/event-stream"
_COMMENT = b": keep-alive\n\n"
"""As vLLM writes it. Clients skip lines that begin with a colon: https://html.spec.whatwg.org/multipage/server-sent-events.html"""


class Response(msgspec.Struct, gc=False):
    """A JSON object that an API writes, or a part of one.

    The garbage collector does not track these, because they are many and never part of a reference cycle.
    """


class Formatter(ABC):
    """Turns the deltas of one request into response bytes.

    Each request gets a new formatter. Formatters know nothing about the engine. A formatter that does not stream has
    the same methods: its `feed` returns nothing and its `finish` returns the whole document. When streaming, each call
    returns only whole records, and every record ends with a newline. A class that `option.output_formatter` may name
    declares `content_type` and `streams`, which the server reads before it makes a formatter.
    """

    content_type: str
    """ "" for a response without the header."""
    streams: bool
    """True if `feed` returns records. If not, the response is sent with a Content-Length."""
    waits: bool = False
    """True if `feed` and `finish` wait for another process, so they must run where requests may wait."""

    def __init__(self, request: GenerationRequest, prompts: tuple[RenderedPrompt, ...]) -> None:
        self.request = request
        self.prompts = prompts
        self.prompt_tokens = tuple(prompt.num_tokens for prompt in prompts)
        self.cached_tokens: int | None = None
        """The number of them that came from the engine's prefix cache. Set as the sequences begin, if the engine says."""
        self.truncated: str | None = None
        """The option whose time limit has ended the text. Set before the last deltas."""
        self.continuation: str | None = None
        """The token with which a request continues that text, if it can be continued. Set before the last delta."""
        self.resumed = False
        """True if this answer continues another one."""

    def tell(self, inner: Formatter) -> None:
        """Copy the counters to a formatter that this one wraps. Other distributions may have such formatters."""
        inner.prompt_tokens, inner.cached_tokens, inner.truncated, inner.continuation = (
            self.prompt_tokens,
            self.cached_tokens,
            self.truncated,
            self.continuation,
        )

    @property
    def cut_by(self) -> str | UnsetType:
        """`truncated` as a field of the last record of a stream, which tells why `finish_reason` is "length"."""
        return UNSET if self.truncated is None else self.truncated

    @property
    def continued_by(self) -> str | UnsetType:
        """`continuation` as a field of a document or of the last record of a stream."""
        return UNSET if self.continuation is None else self.continuation

    def resume(self, delta: TextDelta) -> None:  # noqa: ARG002  used by formatters that parse the text
        """Take the text so far of the sequence that this answer continues. Its client has it. Called before `feed`."""
        self.resumed = True

    @abstractmethod
    def feed(self, delta: TextDelta) -> bytes:
        """Take the new part of one sequence and return the records that it completes, if any."""

    @abstractmethod
    def finish(self) -> bytes:
        """Return the remaining bytes after every sequence has ended."""

    def error(self, error: LMIError) -> bytes:  # noqa: ARG002  used by streaming formatters
        """Return the record that tells the client why the stream ends early. Only called if `streams` is true."""
        return b""

    def keep_alive(self) -> bytes:
        """Return what keeps proxies from closing a stream that is silent: by default a comment, if it has events."""
        return _COMMENT if self.content_type == _EVENTS else b""

    def close(self) -> None:
        """Called once there are no more deltas, however the answer has ended. May be called twice."""


class CompletionOutput:
    """The output of one sequence so far, and its prompt."""

    def __init__(self, prompt: str) -> None:
        self.prompt = prompt
        self.text = ""
        self.tokens: list[Token] = []
        self.prompt_tokens: tuple[Token, ...] = ()
        self.finish_reason: FinishReason | None = None

    def feed(self, delta: TextDelta) -> None:
        self.text += delta.text
        self.tokens.extend(delta.tokens)
        self.prompt_tokens = self.prompt_tokens or delta.prompt_tokens
        self.finish_reason = delta.finish_reason

    @property
    def cumulative_logprob(self) -> float:
        """The log probability of the whole sequence. One without tokens ranks last."""
        return math.fsum(token.logprob or 0.0 for token in self.tokens) if self.tokens else -math.inf

    @property
    def mean_logprob(self) -> float:
        """The mean log probability per token. Unlike the sum, it does not favour short sequences."""
        return self.cumulative_logprob / len(self.tokens) if self.tokens else -math.inf


class CollectingFormatter(Formatter):
    """A formatter that keeps all that has been generated, and writes one document at the end.

    Its streaming subclasses keep it for their last record, which repeats the whole text.
    """

    content_type = "application/json"
    streams = False

    def __init__(self, request: GenerationRequest, prompts: tuple[RenderedPrompt, ...]) -> None:
        super().__init__(request, prompts)
        self.outputs = [CompletionOutput(prompt.text) for prompt in prompts for _ in range(request.sampling_params.n)]

    def feed(self, delta: TextDelta) -> bytes:
        self.outputs[delta.index].feed(delta)
        return b""

    def generated_text(self, output: CompletionOutput) -> str:
        """Return the text. `return_full_text` puts the prompt in front, unless an earlier answer has shown it."""
        return output.prompt + output.text if self.request.return_full_text and not self.resumed else output.text


def event(document: bytes) -> bytes:
    """Frame JSON as a server-sent event."""
    return b"data: " + document + b"\n\n"


def line(document: bytes) -> bytes:
    """Frame JSON as one of JSON lines."""
    return document + b"\n"


def python_float(value: float) -> float:
    """Return what `encode` writes as Python's `json.dumps` writes `value`.

    msgspec has 0.00001 instead of 1e-05, and 1e16 instead of 1e+16: the logprob of a masked token may be -3.4e+38.
    """
    return literal(repr(value)) if 0 < abs(value) < 1e-4 or 1e16 <= abs(value) < math.inf else value


def literal(number: str) -> float:
    """Return what `encode` writes as exactly these characters."""
    # Fields are declared as numbers, for their schemas.
    return msgspec.Raw(number.encode())  # type: ignore[return-value]
