"""The interface that every wire format implements."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token
from lmi_handlers.core.request import GenerationRequest


class Formatter(ABC):
    """Turns the deltas of one request into response bytes.

    Each request gets a new formatter. Formatters know nothing about the engine. A formatter that does not stream has
    the same methods: its `feed` returns nothing and its `finish` returns the whole document. When streaming, each call
    returns only whole records, and every record ends with a newline.
    """

    content_type: ClassVar[str]
    streams: ClassVar[bool]
    """Whether `feed` returns records. If not, the response is sent with a Content-Length."""

    def __init__(self, request: GenerationRequest, prompt_tokens: tuple[int, ...]) -> None:
        """`prompt_tokens` is the number of tokens in each prompt."""
        self.request = request
        self.prompt_tokens = prompt_tokens

    @abstractmethod
    def feed(self, delta: TextDelta) -> bytes:
        """Take the new part of one sequence and return the records that it completes, if any."""

    @abstractmethod
    def finish(self) -> bytes:
        """Return the remaining bytes after every sequence has ended."""

    def error(self, error: LMIError) -> bytes:  # noqa: ARG002  used by streaming formatters
        """Return the record that tells the client why the stream ends early. Only called if `streams` is true."""
        return b""


class Answer:
    """The part of one sequence that has been generated so far."""

    def __init__(self, prompt: str) -> None:
        self.prompt = prompt
        self.text = ""
        self.tokens: list[Token] = []
        self.prompt_tokens: tuple[Token, ...] = ()
        self.finish_reason: FinishReason | None = None

    def feed(self, delta: TextDelta) -> None:
        """Append the delta."""
        self.text += delta.text
        self.tokens.extend(delta.tokens)
        self.prompt_tokens = self.prompt_tokens or delta.prompt_tokens
        self.finish_reason = delta.finish_reason

    @property
    def reason(self) -> str:
        """The finish reason as JSON."""
        return f'"{self.finish_reason.value}"' if self.finish_reason else "null"

    @property
    def logprob(self) -> float:
        """The log probability of the whole sequence."""
        return math.fsum(token.logprob or 0.0 for token in self.tokens)

    @property
    def mean_logprob(self) -> float:
        """The mean log probability per token. Unlike the sum, it does not favour short answers."""
        return self.logprob / len(self.tokens) if self.tokens else -math.inf


def json_array(items: Iterable[str]) -> str:
    """Join rendered values into a compact JSON array."""
    return f"[{','.join(items)}]"
