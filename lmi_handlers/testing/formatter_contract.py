"""The contract of formatters with the HTTP layer, as a suite of pytest checks."""

from __future__ import annotations

from typing import ClassVar

import pytest

from formatters import load_formatter_class
from formatters.base import Formatter
from lmi_handlers.core.errors import RequestFailed
from lmi_handlers.core.outputs import FinishReason, TextDelta, Token
from lmi_handlers.core.request import GenerationRequest, Prompt, RenderedPrompt
from lmi_handlers.core.sampling_params import SamplingParams

PIECES = ["Hello", "", ' "quoted" \\', "\n", "\r\n", "data: x\n\n", "é€😀", "\u2028", "{", "end."]
"""An answer with text that a careless format confuses with its own syntax."""


class FormatterContract:
    """Feeds one formatter as the server does, and checks what it returns.

    Subclass it as `Test...`, set `name` and define `text`.
    """

    name: ClassVar[str]
    """The formatter's name: its entry point in the group `lmi_handlers.formatters`."""

    def text(self, data: bytes) -> str:
        """Return the answer's text in `data`, as a client reads it. Must raise if `data` has half a record.

        `data` is what a single call returned, never b"".
        """
        raise NotImplementedError

    @pytest.fixture
    def formatter(self) -> Formatter:
        """A new formatter, as each request gets one."""
        return new_formatter(load_formatter_class(self.name))

    def test_content_type(self, formatter: Formatter) -> None:
        """`content_type` is a media type."""
        kind, _, subtype = formatter.content_type.partition("/")
        assert kind, "content_type must be a media type such as application/json"
        assert subtype, "content_type must be a media type such as application/json"

    def test_text(self, formatter: Formatter) -> None:
        """A client reads the whole text, and each call returns only whole records."""
        chunks = [*(formatter.feed(delta) for delta in deltas()), formatter.finish()]
        texts = [self.text(chunk) for chunk in chunks if chunk]
        assert "".join(texts) == "".join(PIECES), "the client must read the text exactly as it was generated"

    def test_records(self, formatter: Formatter) -> None:
        """In a stream, every record ends with a newline. Otherwise, `finish` returns the whole document."""
        chunks = [formatter.feed(delta) for delta in deltas()]
        if not formatter.streams:
            assert not any(chunks), "feed must return nothing if streams is false"
            assert formatter.finish(), "finish must return the document"
            return
        assert any(chunks), "feed must return records as soon as there is text if streams is true"
        for chunk in (*chunks, formatter.finish()):
            assert not chunk or chunk.endswith(b"\n"), "a record must end with a newline, which is sent with it"

    def test_empty_answer(self, formatter: Formatter) -> None:
        """An answer may have no text, for example if it ends at once."""
        chunks = [formatter.feed(TextDelta(finish_reason=FinishReason.EOS_TOKEN)), formatter.finish()]
        assert not any(self.text(chunk) for chunk in chunks if chunk), "there is no text"

    def test_error(self, formatter: Formatter) -> None:
        """A stream that fails ends with a record that tells the client why."""
        if not formatter.streams:
            pytest.skip("a formatter that does not stream reports no errors: the response has not started")
        formatter.feed(deltas()[0])
        record = formatter.error(RequestFailed("the engine failed"))
        assert b"the engine failed" in record, "error must return a record with the error's message"
        assert record.endswith(b"\n"), "a record must end with a newline, which is sent with it"

    def test_continuation(self, formatter: Formatter) -> None:
        """An answer that continues another one only has the rest of the text."""
        first, *others = deltas()
        formatter.resume(first)
        chunks = [formatter.feed(delta) for delta in others]
        texts = [self.text(chunk) for chunk in (*chunks, formatter.finish()) if chunk]
        assert "".join(texts) == "".join(PIECES[1:]), "resume must not show the text so far, which the client has"

    def test_keep_alive(self, formatter: Formatter) -> None:
        """A stream may be silent before its first text and after it."""
        if not formatter.streams:
            pytest.skip("a formatter that does not stream has nothing to keep alive")
        first = formatter.keep_alive()
        chunks = [formatter.feed(delta) for delta in deltas()]
        later = formatter.keep_alive()
        texts = [self.text(chunk) for chunk in (*chunks, formatter.finish()) if chunk]
        assert "".join(texts) == "".join(PIECES), "keep_alive must leave the text as it is"
        for record in (first, later):
            assert not record or record.endswith(b"\n"), "a record must end with a newline, which is sent with it"


def new_formatter(formatter_class: type[Formatter]) -> Formatter:
    """Make a formatter for one request with one prompt."""
    request = GenerationRequest(
        request_id="r", prompts=(Prompt("Hi"),), sampling_params=SamplingParams(), stream=formatter_class.streams
    )
    return formatter_class(request, (RenderedPrompt("Hi", 1),))


def deltas() -> list[TextDelta]:
    """Return an answer's deltas, one token each. The last one has the finish reason."""
    reasons = [None] * (len(PIECES) - 1) + [FinishReason.EOS_TOKEN]
    return [
        TextDelta(tokens=(Token(id=number, text=text, logprob=-0.5),), text=text, finish_reason=reason)
        for number, (text, reason) in enumerate(zip(PIECES, reasons, strict=True))
    ]
