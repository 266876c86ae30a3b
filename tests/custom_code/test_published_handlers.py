"""Handlers in the style of those that LMI's and SageMaker's users publish, each in its own directory and run unchanged.

boto3 calls them through SageMaker's runtime API, whole and streamed, and their process is killed in the middle of a call.
"""

from __future__ import annotations

import functools
import io
import json
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import psutil
import pytest
import requests
from botocore.config import Config
from botocore.exceptions import ClientError
from lora import write_adapter
from model_store import StoreServer
from PIL import Image
from serving import Server
from waiting import wait_until

from lmi_handlers.custom_code import ndlist

HANDLERS = Path(__file__).parent / "handlers"
FORMATTING = "lmi_handlers.custom_code.formatting.process"
CODE = "lmi_handlers.custom_code.child"

_KILLED = re.compile("the process that runs .* ended .*while it worked on this request")


@dataclass
class Handler:
    """A directory with a handler, a body to send, and what the answer to it is."""

    name: str
    body: bytes
    answer: object
    content_type: str = "application/json"
    accept: str = "*/*"
    read: Callable[[bytes], object] = json.loads
    streams: bool = False
    endless: bytes = b""
    """If it streams, a body whose answer is still being written when its process is killed."""
    formats: bool = False
    """Whether an engine answers, and the code only formats."""
    wrong: tuple[bytes, int, str] | None = None
    """A body that it refuses, with the status and text of its own error."""


def arrays(data: bytes) -> list[Any]:
    return [array.tolist() for array in ndlist.decode(data)]


def lines(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.splitlines()]


def picture(data: bytes) -> tuple[str | None, tuple[int, int], Any]:
    image = Image.open(io.BytesIO(data))
    return image.format, image.size, image.getpixel((0, 0))


def content(data: bytes) -> object:
    """The text of a chat completion."""
    return json.loads(data)["choices"][0]["message"]["content"]


def deltas(data: bytes) -> str:
    """The text of a chat completion in chunks, one in a line."""
    records = [json.loads(line) for line in data.splitlines() if line.startswith(b"{")]
    return "".join(record["choices"][0]["delta"].get("content") or "" for record in records if record["choices"])


def png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (20, 10), (255, 0, 0)).save(file, "PNG")
    return file.getvalue()


ARRAY = np.array([[1.5, 2.0]], np.float32)

CASES = [
    Handler(
        "sentiment",
        b'{"inputs": ["good day", "a bad day"]}',
        [{"label": "POSITIVE", "score": 0.5}, {"label": "NEGATIVE", "score": 0.0}],
        wrong=(b'{"texts": []}', 424, "'inputs'"),
    ),
    Handler(
        "text_streamer",
        b'{"inputs": "to be", "parameters": {"max_new_tokens": 25}}',
        [{"outputs": [word]} for word in ("to ", "be ") * 12] + [{"outputs": ["to "]}],
        read=lines,
        streams=True,
        endless=b'{"inputs": "to be", "parameters": {"max_new_tokens": 10000}}',
    ),
    Handler(
        "thumbnails",
        png(),
        ("PNG", (4, 4), (255, 0, 0)),
        content_type="image/png",
        read=picture,
        wrong=(b"no image", 400, "The body is not an image"),
    ),
    Handler(
        "thumbnails", png(), [{"count": 16, "color": [255, 0, 0]}], content_type="image/png", accept="application/json"
    ),
    Handler("arrays", ndlist.encode(ARRAY), [[[3.0, 4.0]]], content_type="tensor/ndlist", read=arrays),
    Handler("arrays", ndlist.encode_npz([ARRAY]), [[[3.0, 4.0]]], content_type="tensor/npz", read=arrays),
    Handler("arrays", b"a,b\n1,2\n3,4\n", {"total": [4.0, 6.0], "count": 2}, content_type="text/csv"),
    Handler("session_features", b'{"type": "start_session", "values": [1, 2]}', {"result": "created 36"}),
    Handler("async_words", b'{"inputs": "to be or not"}', {"generated_text": "TO BE OR NOT"}),
    Handler(
        "async_words",
        json.dumps({"inputs": "to be " * 12, "stream": True}).encode(),
        [{"token": word} for word in ("TO", "BE") * 12],
        read=lines,
        streams=True,
        endless=json.dumps({"inputs": "to be " * 5000, "stream": True}).encode(),
    ),
    Handler("entry_point", b'{"pixels": [255, 51]}', 2.6),
    Handler("sagemaker_script", b'{"instances": [1, "2"]}', {"predictions": [3.0, 5.0]}),
    Handler(
        "token_formatters",
        b'{"question": "abcdefghij", "params": {"max_new_tokens": 9}, "language": "fr"}',
        [{"token_text": letter, "language": "fr"} for letter in "abcdefgh"]
        + [{"token_text": "i", "language": "fr", "finish_reason": "length"}],
        read=lines,
        formats=True,
    ),
    Handler(
        "token_formatters",
        b'{"question": "abcdefghij", "params": {"max_new_tokens": 9, "stream": true}}',
        [{"token_text": letter, "language": "en"} for letter in "abcdefgh"]
        + [{"token_text": "i", "language": "en", "finish_reason": "length"}],
        read=lines,
        streams=True,
        endless=json.dumps({"question": "a" * 2000, "params": {"max_new_tokens": 2000, "stream": True}}).encode(),
        formats=True,
    ),
    Handler(
        "response_formatters",
        b'{"question": "abc", "max_tokens": 30}',
        "USER: ABC\nASSISTANT: ",
        read=content,
        formats=True,
    ),
    Handler(
        "response_formatters",
        b'{"question": "abc", "max_tokens": 30, "stream": true}',
        "USER: ABC\nASSISTANT: ",
        read=deltas,
        streams=True,
        endless=json.dumps({"question": "a" * 1500, "max_tokens": 1500, "stream": True}).encode(),
        formats=True,
    ),
    Handler("batch_scorer", b'{"number": 3}', {"prediction": 30, "batch": True, "size": 1}),
]


class Endpoint:
    """A model of a server, called as an endpoint. A header names it, which boto3 does not know for streams."""

    def __init__(self, server: Server, model: str) -> None:
        self.server = server
        self.model = model
        self._runtime: Any = boto3.client(
            "sagemaker-runtime",
            endpoint_url=server.url,
            region_name="us-east-1",
            aws_access_key_id="x",
            aws_secret_access_key="x",
            config=Config(retries={"max_attempts": 0}),
        )
        self._runtime.meta.events.register("before-call.sagemaker-runtime", self._name_model)

    def _name_model(self, params: dict[str, Any], **_: object) -> None:
        params["headers"]["X-Amzn-SageMaker-Target-Model"] = self.model

    def call(self, body: bytes, **arguments: str) -> dict[str, Any]:
        """Everything about an answer; its body is bytes."""
        request = {"EndpointName": "e", "Body": body, "ContentType": "application/json", **arguments}
        answer: dict[str, Any] = self._runtime.invoke_endpoint(**request)
        return answer | {"Body": answer["Body"].read()}

    def refusal(self, body: bytes, **arguments: str) -> tuple[int, str]:
        """The status and text of the handler's answer to a call that fails."""
        with pytest.raises(ClientError) as failed:
            self.call(body, **arguments)
        response: Any = failed.value.response
        return response["OriginalStatusCode"], response["OriginalMessage"]

    def stream(self, body: bytes, **arguments: str) -> Iterator[bytes]:
        """The parts of an answer, as they arrive."""
        request = {"EndpointName": "e", "Body": body, "ContentType": "application/json", **arguments}
        answer = self._runtime.invoke_endpoint_with_response_stream(**request)
        return (event["PayloadPart"]["Bytes"] for event in answer["Body"])

    def load(self) -> tuple[int, ...]:
        """How many requests run, and how many wait."""
        page = requests.get(f"{self.server.url}/metrics", headers={"Connection": "close"}, timeout=60).text
        series = rf'^vllm:num_requests_(?:running|waiting){{model_name="{self.model}",.*}} (.*)$'
        return tuple(int(float(value)) for value in re.findall(series, page, re.MULTILINE))


Serve = Callable[[str], Endpoint]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """A server with all handlers, each of which is a model."""
    names = {handler.name for handler in CASES}
    files = {name: dict(texts(HANDLERS / name)) for name in names}
    server = StoreServer(tmp_path_factory.mktemp("handlers"), dict.fromkeys(names, ""), "--local-runtime", files=files)
    yield server.wait_ready()
    server.stop()


def texts(folder: Path) -> Iterator[tuple[str, str]]:
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(folder).as_posix(), path.read_text()


@pytest.fixture(scope="module")
def serve(store: StoreServer) -> Serve:
    return functools.cache(lambda name: Endpoint(store, name))


@pytest.mark.parametrize("handler", CASES, ids=lambda handler: f"{handler.name}-{handler.content_type}")
def test_whole_streamed_and_killed_in_the_middle(store: StoreServer, serve: Serve, handler: Handler) -> None:
    endpoint, body = serve(handler.name), handler.body
    types = {"ContentType": handler.content_type, "Accept": handler.accept}
    assert handler.read(endpoint.call(body, **types)["Body"]) == handler.answer
    if handler.formats and not handler.streams:
        return  # an engine streams any answer that is asked for in this way: this is another case
    parts = list(endpoint.stream(body, **types))
    assert handler.read(b"".join(parts)) == handler.answer
    assert (len(parts) > 1) is handler.streams
    if handler.wrong is not None:
        wrong, status, text = handler.wrong
        found = endpoint.refusal(wrong, **types)
        assert (found[0], text in found[1]) == (status, True)

    wait_until(lambda: endpoint.load() == (0, 0))
    module = FORMATTING if handler.formats else CODE
    processes = store.processes_of(handler.name, module)
    assert processes
    if handler.streams:
        stream = endpoint.stream(handler.endless, **types)
        text = next(stream).decode()
        for process in processes:
            process.kill()
        assert _KILLED.search(text + b"".join(stream).decode())
    else:
        status, text = kill_during_call(endpoint, processes, body, types)
        assert (status, bool(_KILLED.search(text))) == (424, True)
    wait_until(lambda: are_replaced(store, handler.name, module, processes))  # until then, requests may be refused
    assert handler.read(endpoint.call(body, **types)["Body"]) == handler.answer


def are_replaced(store: StoreServer, model: str, module: str, processes: list[psutil.Process]) -> bool:
    found = store.processes_of(model, module)
    return bool(found) and not set(found) & set(processes) and store.states()[model] == "Healthy"


def kill_during_call(
    endpoint: Endpoint, processes: list[psutil.Process], body: bytes, types: dict[str, str]
) -> tuple[int, str]:
    """Stop the processes, so that one of them does not answer a call, and kill them. Returns the call's status and text."""
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor() as threads:
        call = threads.submit(endpoint.refusal, body, **types)
        wait_until(lambda: endpoint.load() == (1, 0))
        for process in processes:
            process.kill()
        return call.result()


def test_a_dynamic_batch_with_a_bad_request(store: StoreServer, serve: Serve) -> None:
    endpoint = serve("batch_scorer")
    bodies = [b'{"number": 1}', b'{"number": 2}', b'{"letter": "a"}', b'{"number": 4}']
    (process,) = store.processes_of("batch_scorer", CODE)
    process.suspend()  # the first request may be a batch of its own, but the others wait together
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(endpoint.call, body) for body in bodies]
        wait_until(lambda: sum(endpoint.load()) == len(bodies))
        process.resume()
        answers = [json.loads(call.result()["Body"]) for call in calls]
    assert [answer.get("prediction") for answer in answers] == [10, 20, None, 40]
    assert answers[2] == {"error": "'number'"}
    assert max(answer.get("size", 0) for answer in answers) > 1


def test_a_session_from_its_beginning_to_its_end(serve: Serve) -> None:
    endpoint = serve("session_features")
    new = endpoint.call(b'{"type": "start_session", "values": [1, 2]}', SessionId="NEW_SESSION")["NewSessionId"]
    session, expires = new.split("; Expires=")
    assert expires.endswith("Z")
    for count in range(1, 5):  # by two processes
        answer = endpoint.call(b'{"type": "add", "values": [10, 0]}', SessionId=session)
        assert json.loads(answer["Body"]) == {"features": [1 + 10 * count, 2]}
    assert endpoint.call(b'{"type": "close_session"}', SessionId=session)["ClosedSessionId"] == session
    for other in (session, "0" * 36):
        status, text = endpoint.refusal(b'{"type": "add", "values": [1, 1]}', SessionId=other)
        assert (status, "session not found" in text) == (424, True)


@pytest.mark.long
def test_an_adapters_own_formatter(tiny_llama: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(HANDLERS / "adapter_formatters", tmp_path / "adapter_formatters")
    write_adapter(directory / "adapters" / "formal", 0, layers=2, width=128)
    properties = (directory / "serving.properties").read_text() + f"option.model_id={tiny_llama}\n"
    server = Server(directory, properties, "--local-runtime")
    endpoint = Endpoint(server.wait_ready(), server.name)
    for adapter, name in (({"adapters": "formal"}, "formal"), ({}, "base")):
        body = json.dumps({"inputs": "one two", "parameters": {"max_new_tokens": 3}, **adapter}).encode()
        expected = [{"from": name, "last": last} for last in (False, False, True)]
        assert lines(endpoint.call(body)["Body"]) == lines(b"".join(endpoint.stream(body))) == expected

    body = json.dumps({"inputs": "one two", "parameters": {"max_new_tokens": 2000}, "adapters": "formal"}).encode()
    stream = endpoint.stream(body)
    text = next(stream).decode()
    processes = [server.supervised(FORMATTING)]
    processes[0].kill()
    assert _KILLED.search(text + b"".join(stream).decode())
    wait_until(lambda: formatters_are_replaced(server, processes))
    assert lines(endpoint.call(body.replace(b"2000", b"1"))["Body"]) == [{"from": "formal", "last": True}]
    server.stop()


def formatters_are_replaced(server: Server, processes: list[psutil.Process]) -> bool:
    try:
        return server.supervised(FORMATTING) not in processes and server.ping().status_code == 200
    except AssertionError:  # there is none
        return False
