"""The contract between the request path and a wire format."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token
from lmi_handlers.core.request import GenerationRequest


class Formatter(ABC):
    """Turns the deltas of one request into response bytes. A new object for each request; knows no engine.

    Not streaming is no second path: such a formatter's `feed` returns nothing and its `finish` the whole document.
    A record is never split over two returns, and ends with a newline.
    """

    content_type: ClassVar[str]
    streams: ClassVar[bool]
    """Whether `feed` returns records; if not, the answer is sent with a Content-Length."""

    def __init__(self, request: GenerationRequest, prompt_tokens: tuple[int, ...]) -> None:
        """`prompt_tokens` counts the tokens of each prompt."""
        self.request = request
        self.prompt_tokens = prompt_tokens

    @abstractmethod
    def feed(self, delta: TextDelta) -> bytes:
        """Take what is new of one sequence; return the records that are complete with it, or nothing."""

    @abstractmethod
    def finish(self) -> bytes:
        """Return what remains to be sent once every sequence has ended."""

    def error(self, error: LMIError) -> bytes:  # noqa: ARG002  for those that stream
        """Return the record that tells a client in mid-stream why there is no more. Asked only of those that stream."""
        return b""


class Answer:
    """One sequence as far as it has come."""

    def __init__(self, prompt: str) -> None:
        self.prompt = prompt
        self.text = ""
        self.tokens: list[Token] = []
        self.prompt_tokens: tuple[Token, ...] = ()
        self.finish_reason: FinishReason | None = None

    def feed(self, delta: TextDelta) -> None:
        """Add what is new."""
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
        """The probability of the whole sequence, as a logarithm."""
        return math.fsum(token.logprob or 0.0 for token in self.tokens)

    @property
    def mean_logprob(self) -> float:
        """The same for its average token: long answers are at no disadvantage."""
        return self.logprob / len(self.tokens) if self.tokens else -math.inf


def json_array(items: Iterable[str]) -> str:
    """Join rendered values to a compact array."""
    return f"[{','.join(items)}]"
