"""What handlers import from LMI and from SageMaker's toolkit: each name is there, or its error says what to use."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from facts import says
from model_store import StoreServer

from lmi_handlers.custom_code import lmi_modules
from lmi_handlers.custom_code.outputs import Output
from lmi_handlers.custom_code.pair_list import PairList

NAMES: dict[str, list[str]] = json.loads((Path(__file__).parents[1] / "data" / "djl_python_names.json").read_bytes())
"""The public functions, classes and constants of djl_python 0.28, 0.29, 0.35 and 0.36, by module."""

IMPORTS = """
import importlib, json, sys
from lmi_handlers.custom_code.lmi_modules import provide

provide()
provide()
found = {}
for module, names in json.load(sys.stdin).items():
    for name in names:
        try:
            scope = {}
            exec(f"from {module} import {name} as it", scope)
            found[f"{module}.{name}"] = f"{scope['it'].__module__}" if hasattr(scope["it"], "__module__") else "value"
        except ImportError as error:
            found[f"{module}.{name}"] = f"ImportError: {error}"
json.dump(found, sys.stdout)
"""


def run(script: str, given: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(given), capture_output=True, text=True, timeout=250
    )


def test_every_name_of_lmi_is_there_or_says_what_to_use() -> None:
    ended = run(IMPORTS, NAMES)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, str] = json.loads(ended.stdout)
    provided = {f"{module}.{name}" for module, names in lmi_modules.PROVIDED.items() for name in names}
    for name, result in found.items():
        if name in provided:
            assert not result.startswith("ImportError"), (name, result)
        else:
            assert says(result, f"ImportError {name} not provided"), (name, result)
            assert len(result) < 240, result
    assert provided & found.keys() >= {f"djl_python.{name}" for name in NAMES["djl_python"]}
    assert "djl_python.streaming_utils.StreamingUtils" in provided & found.keys()


def test_every_provided_name_is_one_of_lmi_or_documented_by_it() -> None:
    of_lmi = {f"{module}.{name}" for module, names in NAMES.items() for name in names}
    provided = {f"{m}.{n}" for m, names in lmi_modules.PROVIDED.items() if m.startswith("djl_python") for n in names}
    documented = {  # LMI's pages import them from there, where LMI's modules only import them, too
        "djl_python.output_formatter.RequestOutput",
        "djl_python.output_formatter.TextGenerationOutput",
    }
    assert provided - of_lmi == documented


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("import djl_python.lmi_vllm.vllm_async_service as it; it.service", "runs engine itself"),
        ("from djl_python import nothing", "import name nothing"),
        ("import djl_python.nothing", "No named djl_python.nothing"),
        ("from djl_python.deepspeed import handle", "option.rolling_batch=vllm"),
        ("from sagemaker_inference import model_server", "content_types decoder errors"),
    ],
)
def test_imports_that_fail(statement: str, error: str) -> None:
    ended = run(f"from lmi_handlers.custom_code.lmi_modules import provide; provide(); {statement}", None)
    assert ended.returncode == 1
    assert says(ended.stderr.splitlines()[-1], error)


def test_the_package_as_a_whole() -> None:
    script = """
from lmi_handlers.custom_code.lmi_modules import provide
provide()
import djl_python
from djl_python import *
from djl_python import async_utils
import djl_python.inputs
assert djl_python.__version__ == "0.36.0"
assert Input is djl_python.Input is djl_python.inputs.Input and PairList and SessionManager and Session
assert "Output" in dir(djl_python) and async_utils.create_non_stream_output
assert Input.__module__.startswith("lmi_handlers.")
"""
    ended = run(script, None)
    assert ended.returncode == 0, ended.stderr


def test_values_in_pairs() -> None:
    assert PairList(["a", "b"], [1, 2]).get("b") == 2
    assert PairList(pair_map={"a": 1}).get_keys() == PairList(pair_list=[("a", 1)]).get_keys() == ["a"]
    pairs = PairList()
    pairs.add("b", 2)
    pairs.add("a", 1, index=0)
    pairs.add(pair=("c", 3))
    pairs.add_all(PairList(["d"], [4]))
    assert (pairs.get_keys(), pairs.get_values()) == (["a", "b", "c", "d"], [1, 2, 3, 4])
    with pytest.raises(ValueError, match="2 keys"):
        PairList(["a", "b"], [1])


def test_binary_encode() -> None:
    expected = b"\0\2" + b"\0\0\0\4data" + b"\0\0\0\2\xc3\xa9" + b"\0\0\0\4last" + b"\0\0\0\4True"
    assert Output.binary_encode({"data": "é", "last": True}) == expected
    message = bytearray()
    Output.write_utf8(message, None)
    assert message == b"\xff\xff\xff\xff"


ASYNCHRONOUS = """
import asyncio, json
from djl_python import Input, Output, SessionManager
from djl_python.async_utils import create_non_stream_output, create_stream_chunk_output, handle_streaming_response
from djl_python.encode_decode import decode
from djl_python.session_utils import close_session, create_session, get_session, session_non_stream_output_formatter

sessions = None


async def words(text):
    for word in text.split():
        await asyncio.sleep(0)
        yield word


def write(chunk, upper=False):
    if chunk == "fail":
        raise ValueError("this word is not allowed")
    return json.dumps({"word": chunk.upper() if upper else chunk}), chunk == "end"


def join(chunk, history, **_):
    history = [*(history or []), chunk]
    return {"all": history}, False, history


async def handle(inputs: Input) -> Output:
    global sessions
    if inputs.is_empty():
        sessions = SessionManager(inputs.get_properties())
        return None
    payload = decode(inputs.get_batches()[0], inputs.get_property("Content-Type"))
    if payload.get("session") == "new":
        return session_non_stream_output_formatter(await create_session((sessions, inputs)))
    if payload.get("session") == "close":
        return session_non_stream_output_formatter(await close_session((sessions, inputs)))
    if payload.get("session") == "look":
        return create_non_stream_output({"known": get_session(sessions, inputs) is not None})
    if payload.get("stream") == "history":
        return handle_streaming_response(words(payload["inputs"]), join, accumulate_chunks=True)
    if payload.get("stream"):
        return handle_streaming_response(words(payload["inputs"]), write, upper=True)
    if "code" in payload:
        return create_non_stream_output("", error="not today", code=payload["code"])
    return create_non_stream_output({"generated_text": payload["inputs"]}, properties={"X-Model": "mine"})
"""

STREAMS = """
from djl_python import Output

ITEMS = {"list": ["a", "é"], "text": "b", "dict": {"c": 1}}


def handle(inputs):
    if inputs.is_empty():
        return None
    kind = inputs.get_as_string()
    if kind == "default":
        return Output().add_stream_content(iter(ITEMS.values()))
    if kind == "none":
        return Output().add_stream_content(iter(["b", b"c", ["d"]]), None)
    return Output().add_stream_content(iter(ITEMS), output_formatter=lambda name: f"<{name}>")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    files = {"asynchronous": {"model.py": ASYNCHRONOUS}, "streams": {"model.py": STREAMS}}
    server = StoreServer(tmp_path_factory.mktemp("handlers"), dict.fromkeys(files, ""), files=files)
    yield server.wait_ready()
    server.stop()


def invoke(server: StoreServer, body: object, **options: object) -> requests.Response:
    return server.invoke(body, path="/predictions/asynchronous", **options)


def test_documented_asynchronous_handler(server: StoreServer) -> None:
    answer = invoke(server, {"inputs": "hé"})
    assert (answer.status_code, answer.content) == (200, '{"generated_text": "hé"}\n'.encode())
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["X-Model"] == "mine"
    refused = invoke(server, {"inputs": "x", "code": 429})
    assert (refused.status_code, refused.json()) == (429, {"code": 429, "error": "not today"})
    stream = invoke(server, {"inputs": "one two end three", "stream": True})
    assert stream.headers["Content-Type"] == "application/jsonlines"
    assert stream.text == '{"word": "ONE"}\n{"word": "TWO"}\n{"word": "END"}\n'
    broken = invoke(server, {"inputs": "one fail two", "stream": True}).text.splitlines()
    assert broken == ['{"word": "ONE"}', '{"code": 424, "error": "this word is not allowed"}']
    history = invoke(server, {"inputs": "a b", "stream": "history"}).text.splitlines()
    assert [json.loads(line) for line in history] == [{"all": ["a"]}, {"all": ["a", "b"]}]


def test_documented_sessions_of_an_asynchronous_handler(server: StoreServer) -> None:
    begun = invoke(server, {"session": "new"})
    session_id, expires = begun.headers["X-Amzn-SageMaker-Session-Id"].split("; ")
    assert begun.json() == {"result": f"Session {session_id} created"}
    assert expires.startswith("Expires=20")
    headers = {"X-Amzn-SageMaker-Session-Id": session_id}
    assert invoke(server, {"session": "look"}, headers=headers).json() == {"known": True}
    assert invoke(server, {"session": "look"}).json() == {"known": False}
    closed = invoke(server, {"session": "close"}, headers=headers)
    assert closed.headers["X-Amzn-SageMaker-Closed-Session-Id"] == session_id
    again = invoke(server, {"session": "close"}, headers=headers)
    assert (again.status_code, again.json()["code"]) == (424, 424)


def test_items_of_a_stream(server: StoreServer) -> None:
    def body(kind: str) -> bytes:
        return requests.post(f"{server.url}/predictions/streams", data=kind, timeout=60).content

    assert body("default") == b'{"outputs": ["a", "\\u00e9"]}\n{"outputs": "b"}\n{"outputs": {"c": 1}}\n'
    assert body("none") == b'bc[\n  "d"\n]'
    assert body("own") == b"<list><text><dict>"
