"""Holds our own formatters to `FormatterContract`, and shows that each of its checks can fail."""

from __future__ import annotations

import json

import pytest
from facts import raises

from formatters import FORMATTERS
from formatters.base import Formatter
from formatters.lmi.rolling import JsonFormatter, JsonLinesFormatter
from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.outputs import TextDelta
from lmi_handlers.testing import FormatterContract
from lmi_handlers.testing.formatter_contract import new_formatter


class Document(FormatterContract):
    def text(self, data: bytes) -> str:
        document = json.loads(data)
        [document] = document if isinstance(document, list) else [document]
        text: str = document["generated_text"]
        return text


class Lines(FormatterContract):
    def text(self, data: bytes) -> str:
        return "".join(self.record(json.loads(line)) for line in data.split(b"\n")[:-1] if line)

    def record(self, record: dict[str, dict[str, str]]) -> str:
        return record["token"]["text"]


class Events(Lines):
    def text(self, data: bytes) -> str:
        events = data.decode().split("\n\n")
        assert events.pop() == ""
        return "".join(self.record(json.loads(event.removeprefix("data:"))) for event in events)


class TestJson(Document):
    name = "json"


class TestJsonLines(Lines):
    name = "jsonlines"


class TestSse(Events):
    name = "sse"


class TestTgiJson(Document):
    name = "tgi_json"


class TestTgiArray(Document):
    name = "tgi_array"


class TestTgiSse(Events):
    name = "tgi_sse"


class TestMindieJson(Document):
    name = "mindie_json"


class TestMindieSse(Events):
    name = "mindie_sse"


class TestDynamicJson(Document):
    name = "dynamic_json"


class TestDynamicJsonLines(FormatterContract):
    name = "dynamic_jsonlines"

    def text(self, data: bytes) -> str:
        return "".join(text for line in data.split(b"\n")[:-1] for text in json.loads(line)["outputs"])


def test_no_formatter_is_left_out() -> None:
    suites = (kind for kind in globals().values() if isinstance(kind, type) and kind.__name__.startswith("Test"))
    assert {suite.name for suite in suites if issubclass(suite, FormatterContract)} == FORMATTERS.keys()


class NoMediaType(JsonLinesFormatter):
    content_type = "jsonlines"


class TextLost(JsonLinesFormatter):
    def feed(self, delta: TextDelta) -> bytes:
        return super().feed(delta) if delta.text != "\n" else b""


class HalfRecords(JsonLinesFormatter):
    def feed(self, delta: TextDelta) -> bytes:
        return super().feed(delta)[:-1]


class EarlyDocument(JsonFormatter):
    def feed(self, delta: TextDelta) -> bytes:
        super().feed(delta)
        return b" "


class AlwaysText(JsonLinesFormatter):
    def feed(self, delta: TextDelta) -> bytes:
        return super().feed(delta) if delta.text else b'{"token":{"text":"?"}}\n'


class SilentError(JsonLinesFormatter):
    def error(self, error: LMIError) -> bytes:
        return b""


class HalfComment(JsonLinesFormatter):
    def keep_alive(self) -> bytes:
        return b": still here"


class Repeats(JsonLinesFormatter):
    earlier = b""

    def resume(self, delta: TextDelta) -> None:
        super().resume(delta)
        self.earlier = super().feed(delta)

    def feed(self, delta: TextDelta) -> bytes:
        earlier, self.earlier = self.earlier, b""
        return earlier + super().feed(delta)


def test_counters_for_a_formatter_that_another_one_wraps() -> None:
    outer, inner = new_formatter(JsonFormatter), new_formatter(JsonFormatter)
    outer.prompt_tokens, outer.cached_tokens, outer.truncated = (3,), 2, "response_deadline"
    outer.continuation = "token"
    outer.tell(inner)
    assert (inner.prompt_tokens, inner.cached_tokens, inner.truncated) == ((3,), 2, "response_deadline")
    assert inner.continuation == "token"


@pytest.mark.parametrize(
    ("broken", "check", "message"),
    [
        (NoMediaType, "test_content_type", "content_type media type"),
        (TextLost, "test_text", "text exactly"),
        (HalfRecords, "test_records", "record end newline"),
        (EarlyDocument, "test_records", "feed streams false"),
        (AlwaysText, "test_empty_answer", "no text"),
        (SilentError, "test_error", "return record error's"),
        (Repeats, "test_continuation", "resume text client has"),
        (HalfComment, "test_keep_alive", "record end newline"),
    ],
)
def test_broken_formatter_fails_its_check(broken: type[Formatter], check: str, message: str) -> None:
    with raises(AssertionError, message):
        getattr(TestJsonLines(), check)(new_formatter(broken))
