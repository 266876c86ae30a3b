"""The OpenAPI document: it is valid, it is about the routes that there are, and TGI's own holds for us but where it says so."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import requests
from model_store import ECHO, StoreServer
from openapi_contract import Contract
from openapi_documents import document
from openapi_spec_validator import validate
from paths import DATA, RECORDINGS
from serving import API_KEY, ENVIRON, Server, free_port

CONFIGURATIONS = {
    "an API key": {"has_api_key": True},
    "dynamic batch": {"rolling_batch": "disable"},
    "TGI": {"tgi_compat": True},
    "MindIE": {"tgi_compat": True, "dialect": "mindie"},
}
"""Configurations whose documents differ."""


@functools.cache
def default_document() -> dict[str, Any]:
    """It is valid."""
    default = document()
    validate(default)
    return default


def validate_what_differs(document: dict[str, Any]) -> None:
    """Validate a document without the paths of the default one, and with a stub for each of its components."""
    default = default_document()
    paths = {path: item for path, item in document["paths"].items() if default["paths"].get(path) != item}
    known = default["components"]["schemas"]
    schemas = {
        name: {} if known.get(name) == schema else schema for name, schema in document["components"]["schemas"].items()
    }
    assert paths
    validate(document | {"paths": paths, "components": document["components"] | {"schemas": schemas}})


@pytest.mark.parametrize("options", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_document_is_valid(options: dict[str, Any]) -> None:
    validate_what_differs(document(**options))


@pytest.mark.parametrize("checks_names", [False, True])
def test_document_describes_rejected_host_names(checks_names: bool) -> None:
    """GET requests are rejected only for their host name, and only by servers on the loopback interface."""
    paths = document(checks_names=checks_names)["paths"]
    assert {"403" in path["get"]["responses"] for path in paths.values() if "get" in path} == {checks_names}
    assert all("403" in path["post"]["responses"] for path in paths.values() if "post" in path)


@pytest.mark.parametrize(
    ("options", "continues"),
    [({}, True), ({"continuation_seconds": 0}, False), ({"task": "text-embedding"}, False)],
)
def test_bodies_for_texts_have_the_token_of_an_earlier_part(options: dict[str, Any], continues: bool) -> None:
    described = document(**options)
    for path, has in {
        "/v1/chat/completions": True,
        "/v1/messages": True,
        "/invocations": True,
        "/tokenize": False,
    }.items():
        if path in described["paths"]:
            schema = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
            names = re.findall(r"#/components/schemas/(\w+)", json.dumps(schema))
            found = {"continuation" in described["components"]["schemas"][name].get("properties", {}) for name in names}
            assert (True in found) == (has and continues), path


@pytest.mark.parametrize("task", ["text-embedding", "text-ranking"])
def test_every_component_is_used(task: str) -> None:
    described = document(task=task)
    text = json.dumps(described)
    assert [name for name in described["components"]["schemas"] if f'/schemas/{name}"' not in text] == []


def test_every_component_is_used_or_part_of_tgis_document() -> None:
    """The document has no unused components of our own."""
    ours, theirs = document(), json.loads((DATA / "tgi" / "openapi-2.3.2.json").read_text())
    text = json.dumps(ours)
    unused = {name for name in ours["components"]["schemas"] if f'/schemas/{name}"' not in text}
    assert unused <= set(theirs["components"]["schemas"])


# Against TGI's


_OPENAI = "the shape is OpenAI's, which its clients need"
_ERRORS = "errors on OpenAI's routes are OpenAI's: 400 for what is 422 on TGI's, 500 for 424, an object in `error`"
_WHOLE = "there is no such error: an answer ends with a failure that has a status of its own"
_BEFORE = "what is known before the first event is a JSON answer"

DIFFERENCES = {
    "POST / 200 application/json: may be array": "TGI answers an array too; later documents say so",
    "POST / 500: missing": _WHOLE,
    "POST /generate 500: missing": _WHOLE,
    "POST /generate_stream 500: missing": _WHOLE,
    "POST /generate_stream 422 text/event-stream: missing": _BEFORE,
    "POST /generate_stream 424 text/event-stream: missing": _BEFORE,
    "POST /generate_stream 429 text/event-stream: missing": _BEFORE,
    "POST /tokenize 404: missing": "there is always a tokenizer",
    "GET /v1/models 404: missing": "there is always a model",
    "GET /v1/models 200 application/json.id: missing": "TGI answers the list too; its document is wrong",
    "GET /v1/models 200 application/json.created: missing": "the same",
    "GET /v1/models 200 application/json.owned_by: missing": "the same",
    **{
        f"POST /v1/{route} {difference}": _ERRORS
        for route in ("chat/completions", "completions")
        for difference in (
            "422: missing",
            "424: missing",
            "429 application/json.error: may be object",
            "429 application/json.error_type: missing",
            "500 application/json.error: may be object",
            "500 application/json.error_type: missing",
        )
    },
    **{
        f"{route}: tags is ['OpenAI']": "they are a group of their own at /docs"
        for route in ("POST /v1/chat/completions", "POST /v1/completions", "GET /v1/models")
    },
    "ChatCompletionDelta.content: may be missing": _OPENAI,
    "ChatCompletionDelta.role: may be missing": _OPENAI,
    "Chunk.choices[].finish_reason: may be null": _OPENAI,
    "Chunk.choices[].logprobs: may be object": _OPENAI,
    "Completion.choices[].finish_reason: may be null": _OPENAI,
    "Completion.choices[].logprobs: may be object": _OPENAI,
    "CompletionComplete.logprobs: may be object": _OPENAI,
    "DeltaToolCall.id: may be missing": _OPENAI,
    "DeltaToolCall.type: may be missing": _OPENAI,
    "FinishReason: may be ['abort', 'eos_token', 'error', 'length', 'stop_sequence']": (
        "an engine may abort a sequence; `error` is LMI's"
    ),
    "FunctionDefinition.arguments: may be missing": "OpenAI's name, which TGI reads too, is `parameters`",
    "FunctionDefinition.arguments: takes no other value": "a schema is an object",
    "OutputMessage.content: may be null": "as `TextMessage`",
    "TextMessage.content: may be null": "as vLLM has it where a text ends inside its thoughts",
    "POST /tokenize 200 application/json: may be object": "the answer to vLLM's bodies",
    "Tool.type: takes no other value": "functions are the only tools there are",
    "ToolCall.function.description: missing": _OPENAI,
    "ToolCallDelta: missing": "a delta is one object, with `tool_calls` in it where there are some",
}
"""Intended differences from TGI's document, with reasons."""


def test_document_is_compatible_with_tgis() -> None:
    """For every path, method, status, content type, schema and field: we accept what TGI accepts and return what it returns."""
    theirs = json.loads((DATA / "tgi" / "openapi-2.3.2.json").read_text())
    assert set(Contract(document(), theirs).differences()) == set(DIFFERENCES)


# Against golden bytes


@functools.cache
def components() -> dict[str, Any]:
    found: dict[str, Any] = document()["components"]
    return found


@functools.cache
def validator_of(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": components()})


def errors(name: str, value: Any) -> list[str]:
    """The errors that the named schema finds in a value."""
    return [error.message for error in validator_of(name).iter_errors(value)]


TGI_BODIES: dict[str, dict[str, Any]] = json.loads((RECORDINGS / "tgi" / "wire_bodies.json").read_text())
TGI_SHAPES = {
    "generate_": "GenerateResponse",
    "stream_": "StreamResponse",
    "error": "ErrorResponse",
    "info": "Info",
    "tokenize": "TokenizeResponse",
    "chat_tokenize": "ChatTokenizeResponse",
}
"""Schemas by the prefix of a body's name."""

OPENAI_SHAPES = ("models", "completion_", "chat_final")
"""Bodies with this prefix are TGI's version of OpenAI's answers, which differ from ours as in `DIFFERENCES`."""


def shape_of(name: str) -> str:
    return next(shape for start, shape in reversed(TGI_SHAPES.items()) if name.startswith(start))


@pytest.mark.parametrize("name", [name for name in TGI_BODIES if not name.startswith((*OPENAI_SHAPES, "compat_"))])
def test_tgis_bodies(name: str) -> None:
    assert errors(shape_of(name), TGI_BODIES[name]["json"]) == []


@pytest.mark.parametrize("name", [name for name in TGI_BODIES if not name.startswith((*OPENAI_SHAPES, "compat_"))])
def test_body_with_a_missing_field_is_invalid(name: str) -> None:
    """This shows that the schemas are not trivially true."""
    body = TGI_BODIES[name]["json"]
    fields = body[0] if isinstance(body, list) else body
    shape = components()["schemas"][shape_of(name)]
    optional = set(fields) - set(shape.get("required", fields))
    for field in set(fields) - optional:
        short = {key: value for key, value in fields.items() if key != field}
        assert errors(shape_of(name), [short] if isinstance(body, list) else short)


def test_tgis_array() -> None:
    assert isinstance(TGI_BODIES["compat_root_array"]["json"], list)
    for answer in TGI_BODIES["compat_root_array"]["json"]:
        assert errors("GenerateResponse", answer) == []


def lmi_vectors() -> list[Any]:
    """What LMI's formatters write, except for documents that are errors, for which we use a status and `LmiError`."""
    vectors = json.loads((DATA / "lmi-0.31.json").read_text())
    return [
        pytest.param(vector, id=f"{vector['formatter']}: {vector['case']}")
        for vector in vectors
        if vector["layer"] == "python formatter" and not vector["input"]["tgi_compat"]
        if not (vector["formatter"] == "json" and "engine_error" in vector["input"])
    ]


@pytest.mark.parametrize("vector", lmi_vectors())
def test_lmis_bodies(vector: dict[str, Any]) -> None:
    text = "".join(vector["output"]["per_step"])
    shape, records = "LmiRecord", text.splitlines()
    if vector["formatter"] == "json":
        shape, records = "LmiBestOfResponse" if "best_of_sequences" in text else "LmiResponse", [text]
    for record in filter(None, records):
        assert errors(shape, json.loads(record.removeprefix("data: "))) == []


def test_mindies_bodies() -> None:
    """`special` is null in MindIE's examples, but has a value in ours."""
    data, schemas = RECORDINGS / "mindie", {"components": document(tgi_compat=True, dialect="mindie")["components"]}
    events = [event for event in (data / "stream.txt").read_text().split("\n\n") if event.strip()]
    bodies = {"MindieResponse": [(data / "document.json").read_text()], "MindieStreamResponse": events}
    for name, texts in bodies.items():
        for text in texts:
            value = json.loads(re.sub(r'"special": ?null', '"special": false', text.removeprefix("data:")))
            jsonschema.validate(value, {"$ref": f"#/components/schemas/{name}", **schemas})


# Against the server


_RULES = """
import json, os, sys
from lmi_handlers.app import create_app
for variables in json.loads(sys.argv[1]):
    if os.fork():
        os.wait()
        continue
    os.environ.update(variables)
    app = create_app()
    rules = app._front.url_map if "LMI_MODELS_RUNTIME" in os.environ else app.url_map
    others = ("console.", "docs.", "explain.", "bidirectional_stream")
    shown = [rule for rule in rules.iter_rules() if not rule.endpoint.startswith(others)]
    print(json.dumps([[rule.rule, sorted(rule.methods - {"HEAD", "OPTIONS"})] for rule in shown]), flush=True)
    os._exit(0)  # whatever else waits for an engine
"""
"""Imports the application once for all configurations."""

Routes = set[tuple[str, str]]
ROUTED: list[dict[str, Any]] = [
    {},
    {"rolling_batch": "disable"},
    {"task": "text-embedding"},
    {"task": "text-ranking"},
    {"task": "text-embedding", "tgi_compat": True},
    {"enable_lora": True},
    {"enable_lora": True, "allow_runtime_lora_updating": True},
    {"enable_lora": True, "adapter_management": False},
]
"""Options that change the routes."""


@pytest.fixture(scope="module")
def routing_tables(tmp_path_factory: pytest.TempPathFactory) -> list[Routes]:
    """The routes of the application with each of `ROUTED`, and of a server with several models, without the models' own.

    They are all but those that OpenAPI is not for: pages, the runtime API of `--local-runtime`, which AWS describes, and
    the WebSocket.
    """
    runtime = tmp_path_factory.mktemp("runtime")
    (runtime / "home").mkdir()
    variables = [
        {f"OPTION_{name.upper()}": str(value).lower() for name, value in options.items()} for options in ROUTED
    ]
    variables.append({"LMI_MODELS_RUNTIME": str(runtime), "LMI_MODEL_STORE": str(runtime / "home")})
    environ = ENVIRON | {"LMI_ENGINE_SOCKET": str(runtime / "engine.sock"), "OPTION_ROLLING_BATCH": "echo"}
    command = [sys.executable, "-c", _RULES, json.dumps(variables)]
    run = subprocess.run(command, env=environ, capture_output=True, check=True, timeout=60)
    tables = [
        {
            (method, rule.replace("<path:", "{").replace("<", "{").replace(">", "}"))
            for rule, methods in json.loads(line)
            for method in methods
        }
        for line in run.stdout.splitlines()
    ]
    assert len(tables) == len(variables), run.stderr
    return tables


def described(document: dict[str, Any]) -> Routes:
    return {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}


@pytest.mark.parametrize("number", range(len(ROUTED)), ids=map(str, ROUTED))
def test_document_has_exactly_the_routes_of_the_application(number: int, routing_tables: list[Routes]) -> None:
    assert routing_tables[number] == described(document(**ROUTED[number]))


TASKS = {
    "text-generation": {"/v1/chat/completions", "/v1/messages", "/generate", "/chat_tokenize", "/complete"},
    "text-embedding": {"/v1/embeddings", "/embed", "/similarity", "/semantic_embed"},
    "text-ranking": {"/rerank", "/v1/rerank", "/score", "/predict", "/classify"},
}
"""Some of the routes of each task."""


@pytest.mark.parametrize("task", TASKS)
def test_document_has_only_the_routes_of_the_task(task: str) -> None:
    paths = document(task=task)["paths"]
    assert {name for name, routes in TASKS.items() if routes & paths.keys()} == {task}
    assert {"/invocations", "/", "/ping", "/v1/models", "/tokenize", "/info"} | TASKS[task] <= paths.keys()


def test_parameters_are_those_of_features_that_are_on() -> None:
    def named(**options: Any) -> set[str]:
        parameters = document(**options)["paths"]["/invocations"]["post"]["parameters"]
        return {each["name"] for each in parameters}

    assert named(enable_stateful_sessions=False) == {"model_name", "Idempotency-Key"}
    assert named() - named(retry_grace=0) == {"Idempotency-Key"}
    assert named(enable_lora=True) - named() == {"adapter", "X-Amzn-SageMaker-Adapter-Identifier"}
    assert named() == {"model_name", "Idempotency-Key", "X-Amzn-SageMaker-Session-Id"}


def test_documents_of_a_server_with_several_models(tmp_path: Path, routing_tables: list[Routes]) -> None:
    own, front = routing_tables[0], routing_tables[-1]
    server = StoreServer(tmp_path, {"a": ECHO, "b": ECHO})
    try:
        server.wait_ready()
        of_all = server.ask("GET", "/openapi.json").json()
        of_one = server.ask("GET", "/openapi.json?model_name=b").json()
        for each in (of_all, of_one):
            validate_what_differs(each)
        assert described(of_all) == front
        assert described(of_one) == front | own
        path = of_one["paths"]["/predictions/{model}"]["post"]["parameters"][0]
        assert path["schema"]["enum"] == ["b"]
        assert server.ask("GET", "/openapi.json?model_name=nope").status_code == 404
        example = of_all["paths"]["/models"]["post"]["requestBody"]["content"]["application/json"]["examples"]
        (body,) = [each["value"] for each in example.values()]
        server.add(body["url"])
        assert server.ask("POST", "/models", json=body).json() == {"status": 'Model "my-model" registered.'}
    finally:
        server.stop()


def test_management_is_described_where_it_is_open(tmp_path: Path) -> None:
    port = free_port()
    server = StoreServer(
        tmp_path, {}, environ={"LMI_MANAGEMENT_ADDRESS": f"127.0.0.1:{port}", "SERVING_LOAD_MODELS": "NONE"}
    )
    try:
        server.wait_ready()
        elsewhere = requests.get(f"http://127.0.0.1:{port}/openapi.json", timeout=60).json()["paths"]
        here = server.ask("GET", "/openapi.json").json()["paths"]
        assert {path for path in elsewhere if path.startswith("/models")} != set()
        assert {path for path in here if path.startswith("/models")} == set()
        assert server.ask("GET", "/models").status_code == 404
    finally:
        server.stop()


@pytest.mark.parametrize("path", ["/openapi.json", "/api-doc/openapi.json"])
def test_document_is_served_under_both_names(echo_server: Server, path: str) -> None:
    answer = requests.get(echo_server.url + path, timeout=60)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/json")
    assert answer.json() == document(checks_names=True)


def test_document_describes_the_key_but_needs_none(guarded_server: Server) -> None:
    answer = requests.get(f"{guarded_server.url}/openapi.json", timeout=60)
    assert API_KEY not in answer.text
    paths = answer.json()["paths"]
    for methods in paths.values():
        for method, operation in methods.items():
            assert ("security" in operation) == ("401" in operation["responses"]) == (method == "post")
    assert requests.post(f"{guarded_server.url}/generate", json={"inputs": "a"}, timeout=60).status_code == 401


def test_document_says_which_routes_that_read_need_the_key() -> None:
    paths = document(has_api_key=True, enable_lora=True)["paths"]
    reading = {path: "security" in methods["get"] for path, methods in paths.items() if "get" in methods}
    assert reading["/adapters"]
    assert reading["/models/{model}/adapters/{adapter}"]
    assert not reading["/info"]
