"""Continuation tokens, and the text of answers that are cut and continued at any token, in every API."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from answer_parts import Shown, joined, shown
from capabilities import capabilities
from facts import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from lmi_handlers.apis.api import Context
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.invocations import Invocations
from lmi_handlers.apis.registry import ServedApis
from lmi_handlers.apis.routes import Generation
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError, InvalidRequest, UnsupportedFeature
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import EncodedImage, EncodedPrompt, EncodedSound, MediaPrompt, RenderedPrompt
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs
from lmi_handlers.core.usage import Owner
from lmi_handlers.serving.continuation import MAX_GENERATED, MAX_LENGTH, Continuations, Fixed, given_key, own_key
from lmi_handlers.serving.parsed import ModelFacts, Parsed
from lmi_handlers.text.bundle import build_byte_bundle
from lmi_handlers.text.sequence import SequenceText, TextRules
from lmi_handlers.text.tokenizer import Tokenizer

PROMPT = EncodedPrompt([1, 2, 3], adapter="a", adapter_digest="1")
PARAMS = SamplingParams(temperature=0.5, seed=7)
FIXED = Fixed.of("m", PROMPT, PARAMS)
CONTINUATIONS = Continuations(b"k" * 32, 60)
NOBODY, TEAM = Owner(), Owner("team-a", "blue")


def sealed(generated: Sequence[int], *, owner: Owner = NOBODY, fixed: Fixed = FIXED) -> str:
    token = CONTINUATIONS.seal(generated, fixed, owner)
    assert token is not None
    return token


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1))
def test_a_token_has_what_was_generated(generated: list[int]) -> None:
    opened = CONTINUATIONS.open(sealed(generated), NOBODY)
    assert opened == (tuple(generated), FIXED)
    opened.check_model("m")
    opened.check(Fixed.of("m", PROMPT, PARAMS))


def test_tokens_are_short() -> None:
    ids = [number * 7919 % 128_000 for number in range(300)]
    assert len(sealed(ids)) < 1000, "of SageMaker's custom attributes, which have room for 1,024 characters"
    assert CONTINUATIONS.seal([0] * (MAX_GENERATED + 1), FIXED, NOBODY) is None
    noise = [number * 2_654_435_761 % 2**32 for number in range(MAX_GENERATED)]
    longest = sealed(noise)
    assert len(longest) < MAX_LENGTH
    assert CONTINUATIONS.open(longest, NOBODY).generated == tuple(noise)


@pytest.mark.parametrize(
    ("continuations", "owner"),
    [
        (Continuations(b"K" * 32, 60), TEAM),
        (Continuations(None, 60), TEAM),
        (CONTINUATIONS, Owner("team-b", "blue")),
        (CONTINUATIONS, Owner("team-a", "red")),
        (CONTINUATIONS, NOBODY),
    ],
    ids=["another key", "no key", "another API key", "another tenant", "nobody"],
)
def test_tokens_of_others_are_refused(continuations: Continuations, owner: Owner) -> None:
    with raises(InvalidRequest, "LMI_CONTINUATION_KEY", code="invalid_continuation"):
        continuations.open(sealed([1, 2], owner=TEAM), owner)
    assert CONTINUATIONS.open(sealed([1, 2], owner=TEAM), TEAM).generated == (1, 2)


def test_a_token_that_was_changed_anywhere_is_refused() -> None:
    data = base64.urlsafe_b64decode(sealed([5] * 9) + "==")
    changed = [data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :] for place in range(len(data))]
    shortened = [data[:end] for end in range(len(data))]
    for wrong in (*changed, *shortened, data + b"\0"):
        with raises(InvalidRequest, "continuation", code="invalid_continuation"):
            CONTINUATIONS.open(base64.urlsafe_b64encode(wrong).rstrip(b"=").decode(), NOBODY)


@given(st.one_of(st.text(), st.binary().map(lambda data: base64.urlsafe_b64encode(data).decode())))
def test_any_text_is_refused(text: str) -> None:
    with raises(InvalidRequest, "continuation", code="invalid_continuation"):
        CONTINUATIONS.open(text, NOBODY)


def test_a_huge_token_is_refused() -> None:
    for text in ("A" * (MAX_LENGTH + 1), "A" * MAX_LENGTH):
        with raises(InvalidRequest, "continuation", code="invalid_continuation"):
            CONTINUATIONS.open(text, NOBODY)


def test_a_token_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    token = sealed([1])
    now = time.time()
    monkeypatch.setattr("lmi_handlers.serving.continuation.time.time", lambda: now + 58)
    CONTINUATIONS.open(token, NOBODY)
    monkeypatch.setattr("lmi_handlers.serving.continuation.time.time", lambda: now + 62)
    with raises(InvalidRequest, "expired", code="continuation_expired"):
        CONTINUATIONS.open(token, NOBODY)


def test_none_without_the_option() -> None:
    disabled = Continuations(b"k" * 32, 0)
    assert not disabled.issues
    assert not Continuations(None, 60).issues
    with raises(UnsupportedFeature, "option.continuation_seconds=0", code="continuation_disabled"):
        disabled.open(sealed([1]), NOBODY)


IMAGE = MediaPrompt("<image>", images=[EncodedImage(b"png", 1, "f")])
SOUND = MediaPrompt("<audio>", sounds=[EncodedSound(b"wav", "f")])


@pytest.mark.parametrize(
    ("other", "code"),
    [
        *(
            (Fixed.of("m", msgspec.structs.replace(PROMPT, **adapter), PARAMS), "continuation_of_other_adapter")
            for adapter in ({"adapter": None, "adapter_digest": None}, {"adapter": "b"}, {"adapter_digest": "2"})
        ),
        (Fixed.of("m", msgspec.structs.replace(PROMPT, token_ids=[1, 2, 4]), PARAMS), "continuation_of_other_prompt"),
        (Fixed.of("m", msgspec.structs.replace(PROMPT, cache_salt="s"), PARAMS), "continuation_of_other_prompt"),
        (Fixed.of("m", msgspec.structs.replace(PROMPT, media_prompt=IMAGE), PARAMS), "continuation_of_other_prompt"),
        (Fixed.of("m", msgspec.structs.replace(PROMPT, media_prompt=SOUND), PARAMS), "continuation_of_other_prompt"),
        *(
            (Fixed.of("m", PROMPT, msgspec.structs.replace(PARAMS, **{name: value})), "continuation_of_other_sampling")
            for name, value in {
                "max_tokens": 9,
                "temperature": 0.0,
                "seed": 8,
                "stop": ("x",),
                "logit_bias": {1: 1.0},
                "structured_outputs": StructuredOutputs(json_object=True),
            }.items()
        ),
    ],
)
def test_another_request_is_refused(other: Fixed, code: str) -> None:
    opened = CONTINUATIONS.open(sealed([1]), NOBODY)
    with raises(InvalidRequest, code.rpartition("_")[2], code=code):
        opened.check(other)
    with raises(InvalidRequest, "model", code="continuation_of_other_model"):
        opened.check_model("m2")


def test_what_changes_no_text_may_change() -> None:
    """A stream in LMI's API has log probabilities, and a document has none."""
    changed = msgspec.structs.replace(PARAMS, logprobs=5, prompt_logprobs=1, prompt_lookup_num_tokens=3)
    CONTINUATIONS.open(sealed([1]), NOBODY).check(Fixed.of("m", PROMPT, changed))


def test_keys(tmp_path: Path) -> None:
    assert given_key({}) is None
    assert given_key({"LMI_CONTINUATION_KEY": "x" * 32}) != given_key({"LMI_CONTINUATION_KEY": "x" * 33})
    with raises(ConfigError, "LMI_CONTINUATION_KEY 31 32"):
        given_key({"LMI_CONTINUATION_KEY": "x" * 31})
    key = own_key(tmp_path)
    assert (own_key(tmp_path), len(key)) == (key, 32), "another web worker has the same"
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


# Text


CALLS = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": 3}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {"zone": "CET"}}\n</tool_call>'
)
PLAIN = "Ein Satz — mit «Zeichen» und 😀.\n\nNoch einer. EN"
AGENT = f"<think>\nI wonder: é, <tool?>\n</think>\n\nI look it up.\n{CALLS}"
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("weather", "time")
]
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
ANTHROPIC_TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in ("weather", "time")]
RESPONSE_TOOLS = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("weather", "time")]


class Case(NamedTuple):
    """A body, the path of its API, the text that the model writes, and the options of the server."""

    path: str
    body: dict[str, Any]
    text: str = PLAIN
    options: dict[str, Any] = {}  # noqa: RUF012  nobody changes it


AGENTIC = {"tool_call_parser": "hermes", "reasoning_parser": "deepseek_r1"}
STOP = ["END", "😀!", "\n\nX"]
CASES = {
    "lmi": Case("/invocations", {"inputs": "Hi", "parameters": {"stop": STOP, "details": True}}),
    "lmi-full": Case("/invocations", {"inputs": "Hi", "parameters": {"return_full_text": True}}),
    "lmi-dynamic": Case("/invocations", {"inputs": "Hi"}, options={"rolling_batch": "disable"}),
    "tgi": Case("/invocations", {"inputs": "Hi", "parameters": {"stop": STOP}}, options={"tgi_compat": True}),
    "tgi-details": Case("/generate", {"inputs": "Hi", "parameters": {"details": True, "return_full_text": True}}),
    "mindie": Case("/", {"inputs": "Hi"}, options={"dialect": "mindie"}),
    "completions": Case("/v1/completions", {"prompt": "Hi", "stop": STOP[:3], "logprobs": 1}),
    "completions-echo": Case("/v1/completions", {"prompt": "Hi", "echo": True}),
    "chat": Case("/v1/chat/completions", {**CHAT, "stop": STOP[:3]}),
    "chat-agent": Case("/v1/chat/completions", {**CHAT, "tools": TOOLS}, AGENT, AGENTIC),
    "chat-required": Case(
        "/v1/chat/completions",
        {**CHAT, "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "time"}}},
        '{"zone": "CET"}',
    ),
    "responses": Case("/v1/responses", {"input": "Hi"}),
    "responses-agent": Case("/v1/responses", {"input": "Hi", "tools": RESPONSE_TOOLS}, AGENT, AGENTIC),
    "anthropic": Case("/v1/messages", {**CHAT, "max_tokens": 500, "stop_sequences": STOP}),
    "anthropic-agent": Case("/v1/messages", {**CHAT, "max_tokens": 500, "tools": ANTHROPIC_TOOLS}, AGENT, AGENTIC),
    "aleph-alpha": Case("/complete", {"model": "m", "prompt": "Hi", "maximum_tokens": 500, "echo": True}),
    "aleph-alpha-chat": Case("/chat/completions", {"model": "m", **CHAT}),
}
"""Bodies with one field for the stop strings that the text may nearly have."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("bytes")
    return Tokenizer(directory, build_byte_bundle(directory))


@cache
def parsed(name: str, *, stream: bool) -> Parsed:
    """Parse the body of a case as its route does."""
    path, body, _, options = CASES[name]
    properties = ServingProperties(**({"model_name": "m", "rolling_batch": "echo"} | options))
    facts = ModelFacts("m", "{{ messages }}", capabilities())
    if stream and path == "/generate":
        path = "/generate_stream"
    if stream and "rolling_batch" in options:
        properties = msgspec.structs.replace(properties, enable_streaming="true")
    elif stream and path != "/generate_stream":
        body = {**body, "stream": True}
    payload = Payload(data=json.dumps(body).encode(), request_id="r")
    apis = ServedApis(Context(properties=properties, facts=lambda: facts))
    (endpoint,) = (route.endpoint for route in apis.routes() if (route.method, route.path) == ("POST", path))
    assert isinstance(endpoint, Generation | Invocations)
    return endpoint.of(payload).parse(payload)


def answer(name: str, tokenizer: Tokenizer, cuts: Sequence[int], *, stream: Sequence[bool]) -> Iterator[Shown]:
    """Yield the parts of an answer that is cut after so many tokens. Part i is a stream if `stream[i]`."""
    ids = [*CASES[name].text.encode()]
    start = 0
    for place, end in enumerate([*cuts, len(ids)]):
        of_part = parsed(name, stream=stream[place])
        text = SequenceText(TextRules(tokenizer, of_part.request.sampling_params), [72, 105])
        formatter = of_part.formatter(of_part.request, (RenderedPrompt("Hi", 2, (72, 105)),))
        if start:
            formatter.resume(text.feed(TokenOutput(request_id="", token_ids=ids[:start])))
        written = b"".join(
            formatter.feed(text.feed(TokenOutput(request_id="", token_ids=[number], logprobs=[-0.5])))
            for number in ids[start:end]
        )
        if text.finish_reason is None and end < len(ids):
            formatter.truncated, formatter.continuation = "stream_deadline", "T"
            written += formatter.feed(text.interrupt())
        elif text.finish_reason is None:
            end_of_text = TokenOutput(request_id="", token_ids=[], finish_reason=FinishReason.EOS_TOKEN)
            written += formatter.feed(text.feed(end_of_text))
        yield (part := shown(written + formatter.finish()))
        assert (part.continuation is None) == (formatter.continuation is None)
        if part.continuation is None:
            break
        start = end


@cache
def never_cut(name: str, tokenizer: Tokenizer, *, stream: bool) -> Shown:
    (whole,) = answer(name, tokenizer, (), stream=[stream])
    return whole


def check_cuts(name: str, tokenizer: Tokenizer, cuts: Sequence[int], *, stream: Sequence[bool]) -> None:
    whole = never_cut(name, tokenizer, stream=stream[0])
    assert any(whole.content)
    parts = [*answer(name, tokenizer, cuts, stream=stream)]
    got, expected = joined(parts), whole.content
    mixed = len({*stream[: len(parts)]}) > 1
    assert got[:2] == expected[:2], (name, cuts, stream)
    if not mixed:
        assert [[call[0], json.loads(call[1])] for call in got[2]] == [
            [call[0], json.loads(call[1])] for call in expected[2]
        ], (name, cuts, stream)


@pytest.mark.parametrize("stream", [False, True], ids=["document", "stream"])
@pytest.mark.parametrize("name", CASES)
def test_cut_anywhere_and_continued_is_the_whole(name: str, stream: bool, tokenizer: Tokenizer) -> None:
    for cut in range(1, len(CASES[name].text.encode())):
        check_cuts(name, tokenizer, [cut], stream=[stream] * 2)


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_cut_several_times(name: str, tokenizer: Tokenizer, data: st.DataObject) -> None:
    """Each part may be a document or a stream, whatever the others are."""
    last = len(CASES[name].text.encode()) - 1
    cuts = sorted(data.draw(st.sets(st.integers(1, last), min_size=1, max_size=6)))
    size = len(cuts) + 1
    check_cuts(name, tokenizer, cuts, stream=data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))


def test_a_part_that_was_cut_holds_back_what_a_stop_string_may_cut(tokenizer: Tokenizer) -> None:
    """The rest of the answer has it, unless it is the stop string."""
    case = CASES["lmi"]
    cut = len(case.text.encode())
    assert case.text.endswith("EN")
    text = SequenceText(TextRules(tokenizer, parsed("lmi", stream=False).request.sampling_params), [72])
    delta = text.feed(TokenOutput(request_id="", token_ids=[*case.text.encode()]))
    assert delta.text == case.text.removesuffix("EN")
    assert text.interrupt().text == ""
    assert text.finish_reason is FinishReason.LENGTH
    resumed = SequenceText(TextRules(tokenizer, parsed("lmi", stream=False).request.sampling_params), [72])
    resumed.feed(TokenOutput(request_id="", token_ids=[*case.text.encode()][:cut]))
    assert resumed.feed(TokenOutput(request_id="", token_ids=[*b"D!"])).text == ""
    assert resumed.finish_reason is FinishReason.STOP_SEQUENCE
