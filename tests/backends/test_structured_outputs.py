"""Structured outputs: which tokens are allowed, what happens during compilation, and grammars that are too expensive."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import queue
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import psutil
import pytest
import requests
import torch
from facts import raises, says
from frozen_trials import frozen_trials
from hypothesis import given, settings
from hypothesis import strategies as st
from json_schemas import any_schemas, examples, object_schemas, schemas
from server_sent_events import json_events
from serving import Server
from transformers import LlamaConfig, LlamaForCausalLM

from backends.base import ModelFiles
from backends.grammar import GrammarMatcher, GrammarMatchers, Vocabulary, grammar_text
from backends.grammar_compiler import GrammarCompiler
from backends.sampling.bad_words import BadWords
from backends.transformers.backend import TransformersBackend
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import check_sampling_params
from lmi_handlers.core.errors import InvalidRequest, RequestFailed, UnsupportedFeature
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import EncodedPrompt, TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs
from lmi_handlers.engine.admission import RollingBatch
from lmi_handlers.engine.loop import EngineLoop, Inbox
from lmi_handlers.engine.messages import EngineMessage, Failed, Outputs, SequenceOutput, Submit
from lmi_handlers.text.bundle import TOKENIZER_FILE, build_byte_bundle

VOCAB_SIZE = 300  # more than the tokenizer has, as many models do
EOS = 256
TOO_MUCH = StructuredOutputs(
    json=json.dumps({"type": "array", "items": {"enum": ["x" * 1000]}, "minItems": 10**9}),
)
"""Exceeds the memory limit after less than a second of processor time, long before the time limit on any machine."""


def heavy_schema(number: int) -> StructuredOutputs:
    """Runs for several seconds. Different for each number."""
    least = 10**9 + number
    return StructuredOutputs(json=f'{{"type": "array", "items": {{"type": "integer"}}, "minItems": {least}}}')


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    """The byte tokenizer's vocabulary: a token's id is its byte."""
    directory = tmp_path_factory.mktemp("bytes")
    build_byte_bundle(directory)
    return Vocabulary(str(directory / TOKENIZER_FILE), VOCAB_SIZE, (EOS,))


def make_model() -> Any:
    """A new model with the same weights each time, because a backend modifies its model."""
    torch.set_num_threads(1)
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()  # type: ignore[no-untyped-call]  # the library's own


@pytest.fixture(scope="module")
def backend(vocabulary: Vocabulary) -> Iterator[TransformersBackend]:
    made = TransformersBackend(make_model(), eos_token_ids=(EOS,), tokenizer_file=Path(vocabulary.tokenizer_file))
    yield made
    made.close()


def test_matcher_resumes_after_any_number_of_tokens(vocabulary: Vocabulary) -> None:
    tokenizer, grammar = vocabulary.load(), grammar_text(StructuredOutputs(json=json.dumps(PERSON)))
    text = list(b'{"name": "Ann", "age": 30}')
    followed = GrammarMatcher(tokenizer, grammar, VOCAB_SIZE)
    for count in range(1, len(text)):
        followed.advance(text[count - 1])
        resumed = GrammarMatcher(tokenizer, grammar, VOCAB_SIZE)
        resumed.resume(text[:count])
        assert (resumed.allowed() == followed.allowed()).all()
    for tokens, code in ((text, "continuation_finished"), (list(b'{"age"'), "invalid_continuation")):
        with raises(InvalidRequest, "structured_outputs", code=code):
            GrammarMatcher(tokenizer, grammar, VOCAB_SIZE).resume(tokens)


def add(backend: TransformersBackend, request_id: str, prompt: str = "x", **params: Any) -> None:
    backend.add_request(
        TokenRequest(
            request_id=request_id,
            prompt=EncodedPrompt(list(prompt.encode())),
            sampling_params=SamplingParams(**{"max_tokens": 500} | params),
        )
    )


def run(backend: TransformersBackend, *request_ids: str) -> dict[str, tuple[list[int], TokenOutput]]:
    """Step until these have ended. Returns the tokens and the last output of each."""
    tokens: dict[str, list[int]] = {request_id: [] for request_id in request_ids}
    last: dict[str, TokenOutput] = {}
    for _ in range(5000):
        if len(last) == len(request_ids):
            return {request_id: (tokens[request_id], last[request_id]) for request_id in request_ids}
        for output in backend.step():
            if output.request_id in tokens:
                tokens[output.request_id] += output.token_ids
                if output.finish_reason is not None:
                    last[output.request_id] = output
    raise AssertionError("a sequence never ended")


def answer(backend: TransformersBackend, wanted: StructuredOutputs, **params: Any) -> str:
    """Return the whole answer, which must end where the grammar does."""
    add(backend, "one", structured_outputs=wanted, **params)
    tokens, last = run(backend, "one")["one"]
    assert (last.finish_reason, last.error) == (FinishReason.EOS_TOKEN, None)
    return bytes(token for token in tokens if token != EOS).decode()


# Allowed tokens


def walk(grammar: GrammarMatcher, rng: random.Random, most: int = 400) -> Iterator[tuple[str, bool]]:
    """Choose random allowed tokens. Yields the text so far, and whether it may end there."""
    text = b""
    for _ in range(most):
        allowed = grammar.allowed()
        assert allowed.shape == (VOCAB_SIZE,)
        ids = np.flatnonzero(allowed).tolist()
        yield text.decode(errors="replace"), EOS in ids or grammar.ended
        ids = [token for token in ids if token != EOS]
        if grammar.ended or not ids:
            return
        token = rng.choice(ids)
        assert token < 256, "a token that is no text"
        text += bytes([token])
        grammar.advance(token)
        assert grammar.error is None


def compiled(vocabulary: Vocabulary, **wanted: Any) -> GrammarMatcher:
    return GrammarMatcher(vocabulary.load(), grammar_text(StructuredOutputs(**wanted)), VOCAB_SIZE)


@settings(deadline=None, max_examples=30)
@given(
    regex=st.recursive(
        st.sampled_from(["a", "bc", r"\d", r"\w", "[^a-y0-9]", r"\.", "/", "é"]),
        lambda inner: (
            st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}"])).map(lambda pair: f"({pair[0]}){pair[1]}")
            | st.lists(inner, min_size=2, max_size=3).map("|".join).map(lambda options: f"({options})")
            | st.lists(inner, min_size=2, max_size=3).map("".join)
        ),
        max_leaves=6,
    ),
    seed=st.integers(0, 2**32),
)
def test_regex_may_end_exactly_where_it_matches(vocabulary: Vocabulary, regex: str, seed: int) -> None:
    for text, may_end in walk(compiled(vocabulary, regex=regex), random.Random(seed), most=40):
        if "�" not in text:  # otherwise in the middle of a character
            assert may_end == (re.fullmatch(regex, text, re.ASCII) is not None), (regex, text)


@settings(deadline=None, max_examples=50)
@given(schema=schemas(), seed=st.integers(0, 2**32))
def test_json_may_end_only_as_a_valid_instance(vocabulary: Vocabulary, schema: dict[str, Any], seed: int) -> None:
    ends = 0
    for text, may_end in walk(compiled(vocabulary, json=json.dumps(schema)), random.Random(seed)):
        if may_end:
            ends += 1
            jsonschema.validate(json.loads(text), schema)
    assert ends


@settings(deadline=None, max_examples=50)
@given(schema=any_schemas(), seed=st.integers(0, 2**32))
def test_schemas_are_enforced_in_full_or_rejected(vocabulary: Vocabulary, schema: Any, seed: int) -> None:
    try:
        grammar = compiled(vocabulary, json=json.dumps(schema))
    except InvalidRequest:
        return
    for text, may_end in walk(grammar, random.Random(seed), most=100):
        if may_end and "\ufffd" not in text:
            jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(
    ("schema", "last"),
    [({"type": "integer", "maximum": 2**64}, 2**53), ({"type": "integer", "minimum": -(2**63)}, -(2**53))],
)
def test_bounds_that_the_library_would_not_enforce(vocabulary: Vocabulary, schema: dict[str, Any], last: int) -> None:
    grammar = compiled(vocabulary, json=json.dumps(schema))
    for byte in str(last).encode():
        assert grammar.allowed()[byte]
        grammar.advance(byte)
    assert grammar.ended


@pytest.mark.parametrize(
    ("schema", "cause"),
    [
        ({"const": 2**60 + 1}, "const 1152921504606846977 2**53"),
        ({"enum": [[-(2**64)]]}, "enum -18446744073709551616 beyond"),
        ({"minimum": 2**60}, "minimum 1152921504606846976 beyond"),
        (
            {"type": "object", "minProperties": 2},
            "minProperties 2 number 0",
        ),
        (
            {"properties": {"a": {"minLength": 5, "maxLength": 2}}},
            "maxLength 2 minLength 5",
        ),
        (["a"], "a schema ['a']"),
        ({"not": {}}, 'Unimplemented keys ["not"]'),
    ],
)
def test_keywords_that_the_library_would_not_enforce(vocabulary: Vocabulary, schema: Any, cause: str) -> None:
    with raises(InvalidRequest, cause):
        compiled(vocabulary, json=json.dumps(schema))


def test_json_has_bounded_white_space(vocabulary: Vocabulary) -> None:
    grammar = compiled(vocabulary, json_object=True)
    for byte in b'{"a": ':
        assert grammar.allowed()[byte]
        grammar.advance(byte)
    assert not grammar.allowed()[list(b" \n\t\r")].any()


def test_class_escapes_are_ascii(vocabulary: Vocabulary) -> None:
    for regex in (r"\d", r"\w", r"\s"):
        assert np.flatnonzero(compiled(vocabulary, regex=regex).allowed()).max() < 128


def test_choices_with_common_prefixes_and_special_characters(vocabulary: Vocabulary) -> None:
    choices = ("a", "ab", 'q"u\\o', "é\n/x", "*", "[0-9]")
    found = {
        text
        for seed in range(60)
        for text, may_end in walk(compiled(vocabulary, choice=choices), random.Random(seed))
        if may_end
    }
    assert found == set(choices)


@pytest.mark.parametrize("grammar", ['root ::= sign? digit+\nsign ::= "-"\ndigit ::= [0-9]', 'start: "-"? /[0-9]+/'])
def test_ebnf(vocabulary: Vocabulary, grammar: str) -> None:
    for text, may_end in walk(compiled(vocabulary, grammar=grammar), random.Random(5), most=12):
        assert may_end == (re.fullmatch("-?[0-9]+", text) is not None)


# The backend


@pytest.mark.parametrize("params", [{"temperature": 0}, {"seed": 5}, {"seed": 6, "temperature": 3.0, "top_p": 0.9}])
def test_each_kind_of_constraint(backend: TransformersBackend, params: dict[str, Any]) -> None:
    jsonschema.validate(json.loads(answer(backend, StructuredOutputs(json=json.dumps(PERSON)), **params)), PERSON)
    assert re.fullmatch(r"\d{3}-\d{4}", answer(backend, StructuredOutputs(regex=r"\d{3}-\d{4}"), **params))
    assert answer(backend, StructuredOutputs(choice=("yes", "no")), **params) in ("yes", "no")
    assert re.fullmatch("a[xy]{3}", answer(backend, StructuredOutputs(grammar='root ::= "a" [xy]{3}'), **params))
    add(backend, "object", structured_outputs=StructuredOutputs(json_object=True), max_tokens=2, **params)
    assert run(backend, "object")["object"][0][0] == ord("{")


def test_other_parameters_do_not_override_the_grammar(backend: TransformersBackend) -> None:
    wanted = StructuredOutputs(regex="[ab]{4}")
    assert re.fullmatch("[ab]{4}", answer(backend, wanted, logit_bias={ord("z"): 100.0, EOS: 100.0}))
    assert re.fullmatch("[ab]{4}", answer(backend, wanted, min_tokens=30)), "what is over is over"
    assert re.fullmatch("[ab]{4}", answer(backend, wanted, ignore_eos=True))
    assert answer(backend, wanted, allowed_token_ids=(ord("b"), EOS)) == "bbbb"
    assert answer(backend, wanted, bad_words=("a",)) == "bbbb"
    either = StructuredOutputs(regex="a{2,5}")
    assert answer(backend, either, min_tokens=4, logit_bias={EOS: 100.0}) == "aaaa"
    assert answer(backend, either, min_tokens=30, logit_bias={EOS: 100.0}) == "aaaaa"


def test_sequence_without_allowed_tokens_fails_alone(backend: TransformersBackend) -> None:
    greedy = {"temperature": 0, "max_tokens": 20, "ignore_eos": True}
    add(backend, "alone", "other", **greedy)
    expected = run(backend, "alone")["alone"][0]
    add(backend, "beside", "other", **greedy)
    add(backend, "stuck", structured_outputs=StructuredOutputs(regex="[ab]{4}"), allowed_token_ids=(ord("z"),))
    ended = run(backend, "stuck", "beside")
    last = ended["stuck"][1]
    assert (last.finish_reason, last.invalid_request) == (FinishReason.ERROR, True)
    assert says(last.error, "no token left")
    assert ended["beside"][0] == expected


def test_grammars_do_not_change_other_sequences(backend: TransformersBackend) -> None:
    plain = {"temperature": 0, "max_tokens": 40, "ignore_eos": True, "logprobs": 2}
    for n in range(3):
        add(backend, f"alone{n}", f"prompt {n}", **plain)
        alone = run(backend, f"alone{n}")[f"alone{n}"][0]
        add(backend, "plain", f"prompt {n}", **plain)
        add(backend, "json", structured_outputs=StructuredOutputs(json=json.dumps(PERSON)), seed=n, top_k=40)
        ended = run(backend, "plain", "json")
        assert ended["plain"][0] == alone
        add(backend, "json", structured_outputs=StructuredOutputs(json=json.dumps(PERSON)), seed=n, top_k=40)
        assert run(backend, "json")["json"][0] == ended["json"][0]


@pytest.mark.parametrize(
    ("wanted", "cause"),
    [
        ({"regex": "("}, "unclosed group"),
        ({"regex": r"(a)\1"}, "backreferences"),
        ({"json": '{"type": "nothing"}'}, "nothing"),
        ({"json": '{"not": {}}'}, "not"),
        ({"json": "[1"}, "cannot be compiled"),
        ({"json": '{"$ref": "#"}'}, "nothing can match it"),
        ({"grammar": "root ::= missing"}, "missing"),
        ({"grammar": "root ::= " + "(" * 2000 + '"a"' + ")" * 2000}, "recursion"),
        ({"json": '{"items":' * 500 + "{}" + "}" * 500}, "recursion"),
        ({"regex": "\ud800"}, "Unicode"),
    ],
)
def test_grammar_that_does_not_compile_is_an_invalid_request(
    backend: TransformersBackend, wanted: dict[str, Any], cause: str
) -> None:
    add(backend, "wrong", structured_outputs=StructuredOutputs(**wanted))
    tokens, last = run(backend, "wrong")["wrong"]
    assert tokens == []
    assert (last.finish_reason, last.invalid_request) == (FinishReason.ERROR, True)
    assert last.error is not None
    assert last.invalid_field == "structured_outputs"
    assert cause in last.error
    assert "\n" not in last.error


def test_grammar_that_exhausts_memory_fails_alone(backend: TransformersBackend) -> None:
    add(backend, "beside", max_tokens=5)
    add(backend, "too much", structured_outputs=TOO_MUCH)
    add(backend, "behind", structured_outputs=StructuredOutputs(choice=("yes",)), temperature=0)
    ended = run(backend, "too much", "beside", "behind")
    assert says(ended["too much"][1].error, "memory")
    assert ended["too much"][1].invalid_request
    assert bytes(ended["behind"][0]) == b"yes"


def test_grammar_that_takes_too_long(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary, str, time_limit=0.3)
    try:
        slow = StructuredOutputs(choice=tuple(f"choice number {n} of very many" for n in range(200_000)))
        with raises(InvalidRequest, "0.3 processor"):
            compiler.submit(slow).result()
        compiler.submit(StructuredOutputs(regex="a")).result()
    finally:
        compiler.close()


def test_light_grammars_overtake_heavy_ones(vocabulary: Vocabulary) -> None:
    """In order of arrival, the last one would wait for eight grammars that take seconds each."""
    compiler = GrammarCompiler(vocabulary, str, time_limit=60.0)
    try:
        heavy = [compiler.submit(heavy_schema(number)) for number in range(8)]
        light = [compiler.submit(StructuredOutputs(regex=f"c{{{number}}}")) for number in (1, 2)]
        for future in light:
            future.result(timeout=120)
        assert sum(future.done() for future in heavy) <= 1
    finally:
        compiler.close()


def test_equal_grammars_share_one_trial(vocabulary: Vocabulary) -> None:
    """Equal grammars that arrive together share one trial. Later ones reuse its result."""
    compiler = GrammarCompiler(vocabulary, str, time_limit=0.05)
    try:
        together = [compiler.submit(heavy_schema(0)) for _ in range(4)]
        together[0].cancel()
        errors = {str(future.exception(timeout=120)) for future in together[1:]}
        assert len(errors) == 1
        assert says(errors.pop(), "0.05 processor compile")
        later = compiler.submit(heavy_schema(0))
        assert later.done(), "there was no other trial"
        assert isinstance(later.exception(), InvalidRequest)
    finally:
        compiler.close()


def test_killed_trial_is_not_cached(vocabulary: Vocabulary) -> None:
    """The kernel may kill it when the machine runs out of memory, which is not the grammar's fault."""
    compiler = GrammarCompiler(vocabulary, str, time_limit=60.0)
    try:
        first = compiler.submit(heavy_schema(0))
        while not first.done():
            for server in psutil.Process().children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    if "backends.grammar_trial" in server.cmdline():
                        for trial in server.children():
                            trial.kill()
            concurrent.futures.wait([first], 0.01)
        with pytest.raises(RequestFailed, match="has died"):
            first.result()
        with pytest.raises(InvalidRequest, match="takes too much memory"):
            compiler.submit(heavy_schema(0)).result(timeout=240)
    finally:
        compiler.close()


def test_cache_of_grammars_is_bounded(vocabulary: Vocabulary) -> None:
    """Its size is bounded: the third large grammar evicts the first."""
    compiler = GrammarCompiler(vocabulary, str)
    try:
        large = [StructuredOutputs(regex="(" * (3_000_000 + number)) for number in range(3)]
        for wanted in large:
            assert isinstance(compiler.submit(wanted).exception(timeout=120), InvalidRequest)
        assert [compiler.submit(wanted).done() for wanted in reversed(large)] == [True, True, False]
    finally:
        compiler.close()


def test_cached_grammars_do_not_wait_for_a_trial(vocabulary: Vocabulary) -> None:
    compiler = GrammarCompiler(vocabulary, str)
    try:
        known = StructuredOutputs(regex="[0-9]")
        compiler.submit(known).result()
        with frozen_trials():
            hanging = compiler.submit(heavy_schema(0))
            compiler.submit(known).result(timeout=60)
            assert not hanging.done()
            compiler.close()
    finally:
        compiler.close()
    with pytest.raises(RequestFailed):
        hanging.result(timeout=60)


def test_abort_during_compilation(backend: TransformersBackend) -> None:
    add(backend, "gone", structured_outputs=StructuredOutputs(regex="abc"))
    assert backend.num_preparing == 1
    backend.abort("gone")
    assert backend.num_preparing == 0
    add(backend, "next", max_tokens=3)
    assert len(run(backend, "next")["next"][0]) == 3


class Recorder:
    """The web worker's side."""

    def __init__(self) -> None:
        self.messages: list[EngineMessage] = []

    def send(self, message: EngineMessage) -> None:
        self.messages.append(message)

    @property
    def outputs(self) -> list[SequenceOutput]:
        return [item for message in self.messages if isinstance(message, Outputs) for item in message.outputs]


def test_waiting_for_a_grammar_takes_no_place_in_the_batch(vocabulary: Vocabulary) -> None:
    """The batch has one place. Two requests run in it while the first one's grammar is compiled."""
    backend = TransformersBackend(
        make_model(), eos_token_ids=(EOS,), tokenizer_file=Path(vocabulary.tokenizer_file), max_batch_size=1
    )
    add(backend, "first", structured_outputs=StructuredOutputs(regex="a"))
    run(backend, "first")
    inbox: Inbox = queue.SimpleQueue()
    loop, worker = EngineLoop(backend, RollingBatch(1), 10, inbox), Recorder()
    inbox.put(
        (worker, Submit(1, "slow", [EncodedPrompt([7])], SamplingParams(structured_outputs=TOO_MUCH, max_tokens=5)))
    )
    for number in (2, 3):
        inbox.put(
            (worker, Submit(number, "quick", [EncodedPrompt([7])], SamplingParams(max_tokens=4, ignore_eos=True)))
        )
    with frozen_trials():
        while len(told := worker.outputs) < 8:
            loop.turn()
        assert [item.number for item in told] == [2] * 4 + [3] * 4
        assert backend.num_preparing == 1
    while not any(isinstance(message, Failed) for message in worker.messages):
        loop.turn()
    backend.close()
    failed = worker.messages[-1]
    assert isinstance(failed, Failed)
    assert (failed.number, failed.error) == (1, "InvalidRequest")
    assert "takes too much memory" in failed.message


def test_without_a_tokenizer(tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path)
    files = ModelFiles(path=tmp_path, eos_token_ids=(EOS,), vocab_size=VOCAB_SIZE)
    backend = TransformersBackend.load(files, ServingProperties(dtype="fp32"), lambda phase: None)
    assert {"bad_words", "structured_outputs"} <= set(backend.capabilities.unsupported)
    assert "watermark" not in backend.capabilities.unsupported
    for params in ({"bad_words": ("a",)}, {"structured_outputs": StructuredOutputs(regex="a")}):
        with raises(UnsupportedFeature, f"{next(iter(params))} not supported transformers"):
            check_sampling_params(SamplingParams(**params), backend.capabilities)


# Over HTTP


@pytest.mark.model
def test_over_http(tiny_server: Server) -> None:
    def generate(grammar: dict[str, Any], path: str = "/generate") -> Any:
        parameters = {"grammar": grammar, "max_new_tokens": 200, "do_sample": True, "seed": 1}
        return tiny_server.invoke({"inputs": "Tell me", "parameters": parameters}, path=path)

    text = generate({"type": "json", "value": PERSON}).json()["generated_text"]
    jsonschema.validate(json.loads(text), PERSON)
    streamed = generate({"type": "json", "value": PERSON}, "/generate_stream")
    events = json_events(streamed.text)
    assert "".join(event["token"]["text"] for event in events if not event["token"]["special"]) == text
    refused = generate({"type": "regex", "value": "("})
    assert refused.status_code == 422
    assert "unclosed group" in refused.text
    refused = generate({"type": "regex", "value": "("}, "/generate_stream")
    assert refused.status_code == 422


@pytest.fixture
def server_of(request: pytest.FixtureRequest) -> Server:
    """A server on the engine that the test's parameter names."""
    server: Server = request.getfixturevalue("tiny_server" if request.param == "scheduler" else "tiny_vllm_server")
    return server


TOKENS = 200
ENDLESS = {"type": "array", "items": {"enum": ["x" * 1000]}, "minItems": 10**9}
TRIED: list[tuple[dict[str, Any], int]] = [
    ({"type": "json", "value": {"type": "object", "properties": {"beside": {"type": "boolean"}}}}, 200),
    ({"type": "json", "value": {"type": "object", "properties": {"a": ENDLESS}}}, 422),
    ({"type": "regex", "value": "(x{1,1000}){1,1000}"}, 422),
]


@pytest.mark.model
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("server_of", "tried"),
    [("scheduler", TRIED), pytest.param("vllm", TRIED[:2], marks=pytest.mark.needs("vllm"))],
    ids=["scheduler", "vllm"],
    indirect=["server_of"],
)
def test_stream_continues_while_a_grammar_is_tried(server_of: Server, tried: list[tuple[dict[str, Any], int]]) -> None:
    """A whole answer is streamed during one trial, however long that takes. Afterwards, the trial goes on."""
    parameters = {"max_new_tokens": TOKENS, "ignore_eos_token": True, "details": True}
    stream = {"inputs": "hello", "parameters": parameters, "stream": True}

    def ask(grammar: dict[str, Any]) -> requests.Response:
        body = {"inputs": "x", "parameters": {"grammar": grammar, "max_new_tokens": 5}}
        return server_of.invoke(body, path="/generate", timeout=240)

    # This starts the process that tries grammars. No other test may have asked for any of these: verdicts are cached.
    assert ask({"type": "regex", "value": "beside{3}"}).status_code == 200
    for grammar, status in tried:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            with server_of.invoke(stream, stream=True) as beside, frozen_trials(server_of.engine()):
                lines = beside.iter_lines()
                next(lines)
                answer = pool.submit(ask, grammar)
                *_, last = lines
                assert json.loads(last)["details"]["generated_tokens"] == TOKENS
                assert not answer.done()
            assert answer.result().status_code == status, answer.result().text


# The real model


def grammars(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all forms in which TGI's clients can send a schema."""
    return [
        {"type": "json", "value": schema},
        {"type": "json", "value": json.dumps(schema)},
        {"type": "json_object", "value": schema},
        {"type": "json_schema", "value": {"name": "wanted", "schema": schema}},
    ]


@pytest.mark.model
@pytest.mark.timeout(900)
def test_random_schemas_on_the_real_model(model_server_once: Server) -> None:
    """At the same time, in all forms, half of them greedy."""
    wanted = examples(object_schemas(), 8)
    assert len(wanted) == 8

    def generate(number: int) -> requests.Response:
        parameters = {
            "grammar": grammars(wanted[number])[number % 4],
            "max_new_tokens": 500,
            "details": True,
            **({"do_sample": True, "seed": number} if number % 8 < 4 else {}),
        }
        body = {"inputs": "An example in JSON: ", "parameters": parameters}
        return model_server_once.invoke(body, path="/generate", timeout=600)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(generate, range(8)))
    for schema, answer in zip(wanted, answers, strict=True):
        assert answer.status_code == 200, (schema, answer.text)
        text = answer.json()["generated_text"]
        assert answer.json()["details"]["finish_reason"] == "eos_token", (schema, text)
        jsonschema.validate(json.loads(answer.json()["generated_text"]), schema)


@pytest.mark.model
@pytest.mark.parametrize(
    "keywords",
    [
        {"not": {"required": ["a"]}},
        {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
        {"dependentRequired": {"a": ["b"]}},
        {"propertyNames": {"maxLength": 3}},
        {"unevaluatedProperties": False},
        {"minProperties": 2},
        {"properties": {"a": {"type": "array", "uniqueItems": True}}},
        {"properties": {"a": {"type": "array", "contains": {"type": "integer"}}}},
        {"properties": {"a": {"type": "string", "format": "nonsense"}}},
        {"properties": {"a": {"$ref": "https://example.com/schema"}}},
        {"properties": {"a": {"type": "string", "pattern": "^(?!b)"}}},
        {"properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}},
    ],
)
def test_unsupported_schemas(tiny_server: Server, keywords: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}} | keywords
    for grammar in grammars(schema):
        body = {"inputs": "An example in JSON: ", "parameters": {"grammar": grammar, "max_new_tokens": 5}}
        answer = tiny_server.invoke(body, path="/generate")
        assert answer.status_code == 422, answer.text
        assert answer.json()["error_type"] == "validation"
        assert ": cannot be compiled: " in answer.json()["error"]


def test_bad_words_are_encoded_once_for_all_samples(tmp_path: Path) -> None:
    """A thousand of them took a tenth of a second for each, in which all other sequences waited."""
    build_byte_bundle(tmp_path)
    bad_words = BadWords(tmp_path / TOKENIZER_FILE, 257)
    words = ("ab", " ab", "a", "ab")
    assert bad_words.token_ids(words) == [[97, 98], [32, 97, 98], [97], [32, 97]]
    assert bad_words.token_ids(words) is bad_words.token_ids((*words,))


def test_samples_of_a_grammar_go_on_by_themselves(vocabulary: Vocabulary) -> None:
    """It is compiled once for all of them."""
    matchers = GrammarMatchers(vocabulary.load(), VOCAB_SIZE)
    text = grammar_text(StructuredOutputs(regex="a(b|cd)e"))
    first, second = matchers(text), matchers(text)
    for token in b"ab":
        first.advance(token)
    for token in b"acd":
        second.advance(token)
    assert np.flatnonzero(first.allowed()).tolist() == np.flatnonzero(second.allowed()).tolist() == [ord("e")]
    first.advance(ord("e"))
    assert (first.ended, second.ended) == (True, False)
    third = matchers(text)
    third.resume(list(b"ac"))
    assert np.flatnonzero(third.allowed()).tolist() == [ord("d")]
    assert np.flatnonzero(matchers(text).allowed()).tolist() == [ord("a")]
