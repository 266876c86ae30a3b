"""The tools read the answers of every API: the text as it arrives, the numbers of tokens, and failures."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from facts import raises
from hypothesis import given
from hypothesis import strategies as st

from lmi_handlers.tools.client.answer import failure_cause, pieces
from lmi_handlers.tools.client.apis import Said, said
from lmi_handlers.tools.client.continuation import MAX_PARTS, MAX_SILENT_PARTS, whole_answer
from lmi_handlers.tools.client.errors import AnswerFailed, CallRefused, code_of, is_error
from lmi_handlers.tools.client.server import InvokeRequest, StreamedResponse

DEEP: Any = {"token": {"text": "a"}}
for _ in range(900):
    DEEP = [DEEP]

SSE, LINES, JSON = "text/event-stream", "application/jsonlines", "application/json; charset=utf-8"


def sse(*records: object) -> bytes:
    return b"".join(b"event: x\ndata: " + json.dumps(record).encode() + b"\n\n" for record in records)


def json_lines(*records: object) -> bytes:
    return b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)


def texts(parts: Iterable[bytes], content_type: str) -> Iterator[str]:
    return (piece.text for piece in pieces(parts, content_type) if not piece.is_reasoning)


STREAMS = {
    "lmi": (json_lines({"token": {"text": "Grü"}}, {"token": {"text": "ße"}, "generated_text": "Grüße"}), LINES),
    "tgi": (
        sse(
            {"token": {"text": "Grü"}},
            {"token": {"text": "ße", "special": False}},
            {"token": {"text": "</s>", "special": True}, "generated_text": "Grüße"},
        ),
        SSE,
    ),
    "chat": (sse({"choices": [{"delta": {"content": "Grü"}}]}, {"choices": [{"delta": {"content": "ße"}}]}), SSE),
    "chat-lines": (json_lines({"choices": [{"delta": {"role": "a"}}]}, {"choices": [{"text": "Grüße"}]}), LINES),
    "responses": (sse({"type": "response.created"}, {"type": "response.output_text.delta", "delta": "Grüße"}), SSE),
    "anthropic": (
        sse(
            {"type": "message_start", "message": {"type": "message", "content": [], "usage": {"output_tokens": 1}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Grü"}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "ße"}},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        ),
        SSE,
    ),
    "done": (sse({"choices": [{"text": "Grüße"}]}) + b": comment\n\ndata: [DONE]\n\n", SSE),
    "not-a-number": (b'{"token": {"text": "Gr\\u00fc\\u00dfe", "logprob": -Infinity}}', LINES),
    "plain": ("Grüße".encode(), "text/plain; charset=utf-8"),
}
ANSWERS = {
    "lmi": {"generated_text": "Grüße"},
    "tgi": [{"generated_text": "Grüße"}],
    "chat": {"choices": [{"message": {"content": "Grüße"}}]},
    "completion": {"choices": [{"text": "Grüße"}]},
    "aleph-alpha": {"completions": [{"completion": "Grüße"}]},
    "responses": {"output": [{"type": "reasoning"}, {"content": [{"type": "output_text", "text": "Grüße"}]}]},
    "anthropic": {
        "type": "message",
        "content": [{"type": "thinking", "thinking": ".."}, {"type": "text", "text": "Grüße"}],
    },
    "summary": [{"summary_text": "Grüße"}],
}


@given(st.sampled_from(sorted(STREAMS)), st.lists(st.integers(0, 300)))
def test_parts_may_end_anywhere(name: str, cuts: list[int]) -> None:
    data, content_type = STREAMS[name]
    parts = [data[start:end] for start, end in itertools.pairwise([0, *sorted(cuts), len(data)])]
    assert "".join(texts(parts, content_type)) == "Grüße"


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_text_of_whole_answers(name: str) -> None:
    assert "".join(texts([json.dumps(ANSWERS[name]).encode()], JSON)) == "Grüße"


def test_anything_else_is_printed_as_it_is() -> None:
    for body in (b'{"scores": [1, 2]}', b"[]", b"no JSON", b"1", b'{"output": 3, "choices": 4}'):
        assert "".join(texts([body], JSON)) == body.decode()
    assert "".join(texts([b"no JSON\n{}\n[1"], LINES)) == "no JSON\n[1\n"


@pytest.mark.parametrize(
    ("data", "content_type", "cause"),
    [
        (sse({"token": {"text": "a"}}, {"error": {"message": "out of memory"}}), SSE, "out of memory"),
        (json_lines({"token": {"error_msg": "dead"}, "details": {"finish_reason": "error"}}), LINES, "dead"),
        (b'{"error": "no"}', JSON, "no"),
        (sse({"type": "error", "code": "server_error", "message": "it died"}), SSE, "it died"),
        (sse({"type": "response.failed", "response": {"error": {"message": "it fell"}}}), SSE, "it fell"),
        (sse({"type": "response.failed", "response": {"error": None}}), SSE, "generation failed"),
    ],
)
def test_failures_in_answers(data: bytes, content_type: str, cause: str) -> None:
    with pytest.raises(AnswerFailed, match=cause):
        list(texts([data], content_type))


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (
            {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}},
            Said(prompt_tokens=3, output_tokens=5),
        ),
        (
            {"choices": [{"delta": {"content": "a", "reasoning_content": "b"}}], "usage": None},
            Said(text="a", reasoning="b"),
        ),
        (
            {"type": "response.completed", "response": {"usage": {"input_tokens": 3, "output_tokens": 5}}},
            Said(prompt_tokens=3, output_tokens=5),
        ),
        (
            {"token": {"text": "a"}, "generated_text": "all", "details": {"input_length": 3, "generated_tokens": 5}},
            Said(text="a", prompt_tokens=3, output_tokens=5),
        ),
        ({"token": {"text": "a"}, "details": {"prompt_tokens": 3}}, Said(text="a", prompt_tokens=3)),
        ({"token": {"text": "</s>", "special": True}, "details": None}, Said(special="</s>")),
        ({"completions": [{"completion": "a"}, {"completion": "b"}]}, Said(text="a\nb")),
        ({"usage": 1, "choices": [1, {}], "details": []}, Said()),
        ({"usage": {"prompt_tokens": -1, "completion_tokens": 10**400}, "choices": []}, Said()),
        (DEEP, Said()),
        ("text", Said()),
    ],
)
def test_what_a_record_says(record: Any, expected: Said) -> None:
    assert said(record) == expected


def test_documents_that_are_not_utf_8() -> None:
    """As servers write that take Latin-1 for it."""
    data = b'{"error": "ung\xfcltig"}'
    assert list(texts([data], JSON)) == ['{"error": "ung\ufffdltig"}']
    assert list(texts([data + b"\n"], LINES)) == ['{"error": "ung\ufffdltig"}\n']
    assert failure_cause(data) == '{"error": "ung\ufffdltig"}'
    assert not is_error(b'{"error": "a", "\xfc": 1}')
    assert code_of(b'{"error": "a", "code": "\xfc"}') is None


LATE = CallRefused("504: a deadline has passed", code="504")
LATE_ON_AWS = CallRefused("ModelError: 504: a deadline has passed", code="ModelError", status=504)
REFUSED = CallRefused("424: it has expired", code="424")


def asked(*answers: dict[str, str] | CallRefused, body: bytes = b'{"inputs": "a"}') -> tuple[str, list[str | None]]:
    """Ask for a whole answer. Returns its text, and the tokens of the requests that get `answers`, one each."""
    left, tokens = iter(answers), list[str | None]()

    @contextmanager
    def ask(invocation: InvokeRequest) -> Iterator[StreamedResponse]:
        tokens.append(json.loads(invocation.body).get("continuation") if invocation.body.isascii() else None)
        answer = next(left)
        if isinstance(answer, CallRefused):
            raise answer
        yield StreamedResponse(JSON, {}, iter([json.dumps(answer).encode()]))

    request = InvokeRequest(body=body, content_type=JSON, accept=None, parameters={})
    return "".join(piece.text for piece in whole_answer(ask, request)), tokens


def test_a_continuation_that_is_late_is_asked_for_again() -> None:
    first, rest = {"generated_text": "Grü", "continuation": "t"}, {"generated_text": "ße"}
    assert asked(first, LATE, LATE_ON_AWS, LATE, rest) == ("Grüße", [None, "t", "t", "t", "t"])
    more = {"generated_text": "ß", "continuation": "u"}
    assert asked(first, LATE, LATE, more, LATE, LATE, {"generated_text": "e"})[0] == "Grüße"


@pytest.mark.parametrize(("text", "requests"), [("a", MAX_PARTS), ("", MAX_SILENT_PARTS)])
def test_a_server_that_always_has_more_is_left(text: str, requests: int) -> None:
    """For example, one that starts again each time."""
    more: list[dict[str, str]] = [{"generated_text": text, "continuation": f"t{part}"} for part in range(requests)]
    with raises(AnswerFailed, str(requests)):
        asked(*more)
    assert asked(*more[1:], {"generated_text": "b"})[0] == text * (requests - 1) + "b"


def test_some_parts_of_an_answer_may_have_no_text() -> None:
    """For example because a call is not complete."""
    silent = [{"generated_text": "", "continuation": "t"}] * (MAX_SILENT_PARTS - 1)
    some = {"generated_text": "a", "continuation": "t"}
    assert asked(*silent, some, *silent, {"generated_text": "b"})[0] == "ab"


def test_what_cannot_be_continued_ends() -> None:
    first = {"generated_text": "Grü", "continuation": "t"}
    assert asked(first, body=b'{"inputs": "\xff", "\xff": 1}') == ("Grü", [None])
    assert asked({"generated_text": "Grü", "continuation": "\ud800"}) == ("Grü", [None])


@pytest.mark.parametrize(
    "answers",
    [
        [LATE],
        [{"generated_text": "Grü", "continuation": "t"}, REFUSED],
        [{"generated_text": "", "continuation": "t"}, *[LATE] * 4],
    ],
)
def test_other_refusals_and_too_many_end_it(answers: list[dict[str, str] | CallRefused]) -> None:
    with pytest.raises(CallRefused):
        asked(*answers)
