"""The contract between the request path and a wire format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from lmi_handlers.errors import LMIError
from lmi_handlers.outputs import TextDelta
from lmi_handlers.request import GenerationRequest


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
