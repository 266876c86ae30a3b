"""The OpenAPI document and the server agree: responses to valid and invalid generated requests follow the document."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jsonschema
import pytest
import requests
import schemathesis
from openapi_documents import document
from schemathesis.core.failures import AcceptedNegativeData, FailureGroup
from schemathesis.core.result import Ok
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.generation.hypothesis import builder
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.specs.openapi.checks import (
    negative_data_rejection,
    positive_data_acceptance,
    response_schema_conformance,
)
from server_sent_events import event_data
from serving import Server

from formatters.tgi.float32 import to_float32

DOCUMENT: dict[str, Any] = document(continuation_seconds=0)
"""Without `continuation`: its tokens cannot be made up."""

JSON_LINES = "application/jsonlines"

Case = schemathesis.Case[Any]


def without_json_lines() -> dict[str, Any]:
    """The document without JSON-lines bodies, whose records are separate bodies."""
    document = copy.deepcopy(DOCUMENT)
    for methods in document["paths"].values():
        for operation in methods.values():
            operation.get("requestBody", {}).get("content", {}).pop(JSON_LINES, None)
    return document


def without_bodies_of_other_paths() -> dict[str, Any]:
    """The same, with the only body of /invocations that no other path takes, too."""
    document = without_json_lines()
    body = document["paths"]["/invocations"]["post"]["requestBody"]["content"]["application/json"]
    body["schema"] = {"$ref": "#/components/schemas/LmiRequest"}
    return document


LEFT_OUT = (builder.InvalidHeadersExampleMark, builder.MissingPathParameters, builder.UnserializablePayloadMark)
"""Marks of a test that could not try all of an operation."""


class Operation(NamedTuple):
    """An operation of a document, as `METHOD /path`, and how many requests are made for it.

    `boundaries` adds requests for each keyword of each schema.
    """

    document: dict[str, Any]
    label: str
    max_examples: int
    boundaries: bool


def each_operation(
    document: dict[str, Any], max_examples: int, *, boundaries: bool, only: str = "", but: str = "$^"
) -> pytest.MarkDecorator:
    """Run a test for each operation whose path matches `only` and does not match `but`."""
    labels = [
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method in methods
        if re.search(only, path) and not re.search(but, path)
    ]
    assert labels
    operations = [Operation(document, label, max_examples, boundaries) for label in labels]
    return pytest.mark.parametrize("operation", operations, ids=labels)


SAID_ELSEWHERE = {
    "does not support|is not supported by": "what the engine in use cannot do is in docs/backends.md",
    "contains an image, which this model does not accept": "the same",
    "has neither content nor tool_calls": "between fields",
    "input: must not be empty": "an item of reasoning may have no text",
    "Expected `int": "1.0 is an integer to JSON Schema, and a number to TGI and to us",
    "must have exactly one of": "between fields",
    "needs `logprobs`: true": "between fields",
    "continue_final_message: cannot be combined": "between fields",
    "needs `json_schema`": "between fields",
    "best_of: must be at least n": "between fields",
    "best_of: must equal n in a stream": "between fields",
    "must be at most max_tokens": "between fields",
    "thinking.budget_tokens: must be less than max_tokens": "between fields",
    "stream_options: may only be set with `stream`": "between fields",
    "(max|maximum)_tokens: must be at least 1, got 0": "0 is for `echo` alone",
    "must have a name for each of the": "between fields",
    "names '.*', which is not one of the tools": "between fields",
    "requires a tool call, but there are no tools": "between fields",
    "contains two functions with the same name": "between tools",
    "you must use sampling when": "between fields",
    "`seed` must not be set when": "between fields",
    "when streaming tokens": "between fields, and of /generate_stream's only",
    "messages: must not be empty": "Anthropic's messages of hidden thoughts alone count for nothing",
    "session not found": "which sessions there are is the server's to say",
    "grammar is not valid": "which schemas there are is more than a schema says",
    "response_format: (json|regex) must not be empty": "the same",
    r"(prompts?|inputs?)(\[\d+\])?: has no tokens": "what has tokens is for the tokenizer to say",
    "must be at most one system message, then": "between messages",
    "must be token ids or a list of prompts": "a list is of one kind",
    "must be texts or token ids, not both": "the same",
    "Template error": "what a template takes is the model's",
    "each step needs one candidate per beam": "the engine's",
    "needs a model whose thoughts the server can tell": "the model's",
    "token ids must be from 0 to": "the model's",
    "maximum context length": "the model's",
    "task: must be .+ with this model": "the model's",
    r"cannot be combined with (tools|structured_outputs|guided_\w+)": "between fields",
    "needs `functions`": "between fields",
    "the body must have text_1 and text_2": "between fields",
    "must have one text, or as many as": "between fields",
    r"(text_\d|data_\d|queries|documents|items): must not be empty": "which of them count depends on the others",
    "this model has no sparse embeddings": "the model's",
    r"(texts|documents|text_2|items|data_2)(\[\d+\])?: has no tokens": "what has tokens is for the tokenizer to say",
    "must be texts or lists of texts": "a list is of one kind",
    "must have one or two texts, got": "a list of texts is one input, a list of lists is several",
    "the body must have query and texts, text and text_pair": "between fields",
    r"`inputs` tokens \+ `max_new_tokens`": "the model's",
    "`truncate` must be": "the model's",
    "prompt and answer together": "the model's",
    "(embeddings|scores) need a server with option.task=": "the server's task",
    "(dimensions|compress_to_size): must be at most": "the model's",
    "must be the name of one of the model's prompts": "the model's",
    "cannot be combined with token ids": "between fields",
    "max_request_size": "the whole body's size",
    r"option\.max_(text_bytes|json_values|json_containers|image_bytes)": "the same",
    r"option\.max_(string_characters|schema_bytes|content_parts)": "of several values together",
    r"option\.max_sequences": "between fields",
}
"""Valid bodies that may be rejected: part of the error message, and why no schema expresses it."""

TOLERATED = {
    "best_of: Value smaller": "TGI takes 0 for 1, though its document does not",
    "(logprobs|top_n_tokens): Value": "without `details` they have no effect in LMI",
    "len(gth)?_penalty: Value": "without beams they have no effect, as the response's header tells",
    "system -> Array with invalid items: Missing required property: type": "blocks of Anthropic's system are texts",
    "messages -> Array with invalid items: content -> Array with invalid items: Missing required property: type": "the same",
    "top_k: Value": "with a `top_p` of 0 it has no effect",
    " (max_tokens|maximum_tokens): Value": "another name of it is stronger where it is given",
}
"""Invalid bodies that may be accepted: part of the check's message, and the reason."""


@schemathesis.serializer(JSON_LINES)
def json_lines(context: schemathesis.SerializationContext, value: Any) -> bytes:
    """Bodies with two records each."""
    return b"\n".join([json.dumps(value).encode()] * 2)


CLIENT = requests.Session()
"""Keeps connections open and does not read proxies from the environment. Both would take longer than the answers."""
CLIENT.trust_env = False


def check_operation(server: Server, operation: Operation) -> None:
    """Send an operation's requests, the same each time, and check the responses.

    They are made here. `schema.parametrize()` makes those of all operations while tests are collected, which takes 20 s,
    and each test process collects all tests. (schemathesis's own `from_fixture`, which does not, fails with pytest 9.2.)
    """
    schema = schemathesis.openapi.from_dict(operation.document).include(name=operation.label)
    config = schema.config
    config.generation.deterministic = True
    config.generation.database = "none"
    config.generation.max_examples = operation.max_examples
    config.phases.coverage.enabled = operation.boundaries
    config.checks.negative_data_rejection.expected_statuses = ["4xx"]

    def check_case(case: Case) -> None:
        check(server, case)

    [found] = schema.get_all_operations()
    assert isinstance(found, Ok), found
    feedback = FeedbackSources()
    build_operation_test(
        config=config, operation=found.ok(), test_func=check_case, given_kwargs={}, feedback=feedback
    )()


def check(server: Server, case: Case) -> None:
    """Send a request and check the response with all of schemathesis's checks."""
    response = case.call(base_url=server.url, session=CLIENT, timeout=60)
    excluded: list[schemathesis.CheckFunction] = []
    records = [json.loads(record) for record in records_of(response)]
    if records:
        excluded.append(response_schema_conformance)  # expects one value per body, and events with all fields
        check_records(case, response, records)
    if case.media_type == JSON_LINES:
        excluded += [negative_data_rejection, positive_data_acceptance]  # each record has its own errors
    if case.operation.path == "/tokenize":
        excluded.append(negative_data_rejection)  # only its parameters' types are checked
    if 400 <= response.status_code < 500 and is_said_elsewhere(case, response.text):
        excluded.append(positive_data_acceptance)
    try:
        case.validate_response(response, excluded_checks=excluded)
    except FailureGroup as group:
        _, others = group.split(is_tolerated)
        if others is not None:
            raise others from None


def is_tolerated(failure: BaseException) -> bool:
    return isinstance(failure, AcceptedNegativeData) and any(re.search(part, str(failure)) for part in TOLERATED)


def is_said_elsewhere(case: Case, message: str) -> bool:
    return any(re.search(part, message) for part in SAID_ELSEWHERE) or is_rounded(case.body)


def is_rounded(body: object) -> bool:
    """Whether a parameter is out of bounds only after it is rounded to 32 bits, as in TGI."""
    parameters = body.get("parameters") if isinstance(body, dict) else None
    values = parameters.values() if isinstance(parameters, dict) else ()
    return any(isinstance(value, float) and value not in (0, 1) and to_float32(value) in (0, 1) for value in values)


def records_of(response: schemathesis.Response) -> list[str]:
    """The JSON of each event or line."""
    content_type = response.headers.get("content-type", [""])[0]
    if content_type == JSON_LINES:
        return response.text.removesuffix("\n").split("\n")  # `splitlines` also splits at U+0085 and the like
    if content_type != "text/event-stream":
        return []
    data = event_data(response.text)
    return data[:-1] if data[-1] == "[DONE]" else data


def check_records(case: Case, response: schemathesis.Response, records: list[Any]) -> None:
    """Validate each event or line with the schema of its content type."""
    operation = DOCUMENT["paths"][case.operation.path][case.operation.method]
    contents = operation["responses"][str(response.status_code)]["content"]
    validator = validator_of(json.dumps(contents[response.headers["content-type"][0]]["schema"]))
    for record in records:
        validator.validate(record)


@functools.cache
def validator_of(schema: str) -> jsonschema.Draft202012Validator:
    """A validator looks up each reference once."""
    return jsonschema.Draft202012Validator(json.loads(schema) | {"components": DOCUMENT["components"]})


@pytest.fixture(scope="module")
def embedding_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose vectors count the bytes of a text."""
    properties = "option.rolling_batch=echo\noption.task=text-embedding\n"
    server = Server(tmp_path_factory.mktemp("embedding") / "m", properties)
    yield server.wait_ready()
    server.stop()


@each_operation(
    document(task="text-embedding"),
    6,
    boundaries=True,
    only="embed|similarity|/tokenize|decode|/info|/pooling",
)
def test_every_operation_that_embeds(operation: Operation, embedding_server: Server) -> None:
    check_operation(embedding_server, operation)


@pytest.fixture(scope="module")
def ranking_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose scores are the share of a text's bytes that the query has."""
    server = Server(tmp_path_factory.mktemp("ranking") / "m", "option.rolling_batch=echo\noption.task=text-ranking\n")
    yield server.wait_ready()
    server.stop()


@each_operation(document(task="text-ranking"), 6, boundaries=True, only=r"rank|/predict$|score|/classify|/pooling")
def test_every_operation_that_scores(operation: Operation, ranking_server: Server) -> None:
    check_operation(ranking_server, operation)


OTHER_NAMES = r"^/(predictions|models)/"
"""Tests of the JSON-lines bodies of /invocations."""

SAME_BODIES = "count_tokens|/generate_stream"
"""Paths that take the same body as another path. Only that one gets the requests for each keyword."""


@each_operation(without_json_lines(), 6, boundaries=False, only=SAME_BODIES)
def test_operations_with_the_bodies_of_others(operation: Operation, echo_server: Server) -> None:
    check_operation(echo_server, operation)


@each_operation(without_bodies_of_other_paths(), 6, boundaries=True, but=f"{OTHER_NAMES}|{SAME_BODIES}")
def test_every_operation(operation: Operation, echo_server: Server) -> None:
    check_operation(echo_server, operation)


@each_operation(DOCUMENT, 6, boundaries=False, only=rf"{OTHER_NAMES}|^/invocations")
def test_batches_and_route_aliases(operation: Operation, echo_server: Server) -> None:
    check_operation(echo_server, operation)


@pytest.mark.model
@each_operation(DOCUMENT, 12, boundaries=False, only=r"tokenize|/info|/v1/models")
def test_tokens_of_the_real_model(operation: Operation, model_server_once: Server) -> None:
    check_operation(model_server_once, operation)
