"""The formatters: text in, bytes out."""

from __future__ import annotations

from formatters.base import Formatter, Response, encode
from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.outputs import TextDelta
from lmi_handlers.core.request import GenerationRequest, RenderedPrompt


class Shout(Response):
    """New text of one sequence: `{"index":0,"text":"HEL"}`."""

    index: int
    text: str


class ShoutError(Response):
    """An error: `{"error":"..."}`."""

    error: str


class ShoutLines(Formatter):
    """A stream: one line per piece of text."""

    content_type = "application/jsonlines"
    streams = True

    def feed(self, delta: TextDelta) -> bytes:
        """Called for each new piece of text. Returns whole records only, so that clients can read them at once."""
        return _line(Shout(delta.index, delta.text)) if delta.text else b""

    def finish(self) -> bytes:
        """Called at the end. This format has no closing record."""
        return b""

    def error(self, error: LMIError) -> bytes:
        """Called instead of `finish` if the request fails after the first record."""
        return _line(ShoutError(str(error)))


class ShoutDocument(Formatter):
    """A whole answer with one sequence, for clients that do not stream."""

    content_type = "application/json"
    streams = False

    def __init__(self, request: GenerationRequest, prompts: tuple[RenderedPrompt, ...]) -> None:
        super().__init__(request, prompts)
        self._text = ""

    def feed(self, delta: TextDelta) -> bytes:
        """Collect the text."""
        self._text += delta.text
        return b""

    def finish(self) -> bytes:
        """Return the document."""
        return encode(Shout(0, self._text))


def _line(record: Response) -> bytes:
    return encode(record) + b"\n"
