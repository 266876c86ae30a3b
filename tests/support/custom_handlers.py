"""Files `model.py` in the style of those that LMI's users publish, and one that misbehaves on request."""

from __future__ import annotations

ON_REQUEST = """
import asyncio, json, os, sys, threading, time
from djl_python import Input, Output

started = []


async def numbers():
    for number in range(3):
        await asyncio.sleep(0.01)
        yield f"{number};"


def lines(count, raises=False):
    for number in range(count):
        yield json.dumps({"number": number}) + "\\n"
    if raises:
        raise RuntimeError("no more numbers")


def slowly(path):
    try:
        while True:
            yield "tick\\n"
            time.sleep(0.05)
    finally:
        open(path, "w").write("closed")


async def answer_later(inputs):
    await asyncio.sleep(0.01)
    return Output().add_as_json({"later": inputs.get_as_json()})


def handle(inputs):
    if inputs.is_empty():
        started.append(dict(inputs.get_properties()))
        return None
    case = inputs.get_property("X-Case") or inputs.get_property("X-Amzn-SageMaker-Custom-Attributes")
    if case == "echo":
        value = inputs.get_as_json()
        return Output().add_as_json(value).add_property("Content-Type", "application/json").add_property("X-Seen", "yes")
    if case == "bytes":
        return Output().add(inputs.get_as_bytes()).add_property("content-type", inputs.get_property("content-type"))
    if case == "options":
        return Output().add_as_json(started[0])
    if case == "properties":
        return Output().add_as_json(dict(inputs.get_properties()))
    if case == "content":
        return Output().add_as_json([[key, inputs.get_as_string(key)] for key in inputs.get_content().get_keys()])
    if case == "status":
        return Output(code=int(inputs.get_as_string()), message="as asked").add("text", key="data")
    if case == "none":
        return None
    if case == "error":
        return Output().error("bad input", code=422)
    if case == "stream":
        return Output().add_stream_content(lines(3)).add_property("Content-Type", "application/jsonlines")
    if case == "stream lists":
        return Output().add_stream_content(iter([["a"], ["\\u00e9"]]))
    if case == "stream formatted":
        return Output().add_stream_content(iter("ab"), output_formatter=lambda item: f"<{item}>")
    if case == "stream raises":
        return Output().add_stream_content(lines(2, raises=True)).add_property("Content-Type", "application/jsonlines")
    if case == "stream raises at once":
        return Output().add_stream_content(lines(0, raises=True))
    if case == "stream for ever":
        return Output().add_stream_content(slowly(inputs.get_as_string()))
    if case == "stream dies":
        return Output().add_stream_content(part if part != "die" else os._exit(4) for part in ("good\\n", "die"))
    if case == "asynchronous":
        return answer_later(inputs)
    if case == "asynchronous stream":
        return Output().add_stream_content(numbers())
    if case == "generator":
        return (Output(code=201).add(part).add_property("X-Part", part) for part in ("one", "two"))
    if case == "finalize":
        return Output().add("done").finalize(lambda path: open(path, "w").write("finalized"), inputs.get_as_string())
    if case == "print":
        print("printed by the handler")
        sys.stdout.write("written by the handler\\n")
        return Output().add("quiet")
    if case == "directory":
        here = os.getcwd()
        os.chdir("/")
        return Output().add(here)
    if case == "argv":
        return Output().add_as_json([sys.argv, sys.path.index(os.getcwd()) == len(sys.path) - 1, sys.stdin.read()])
    if case == "raise":
        raise ValueError("a good reason")
    if case == "raise nothing":
        raise ValueError
    if case == "memory":
        raise MemoryError("too large")
    if case == "type":
        return "text"
    if case == "code":
        return Output(code=99)
    if case == "not json":
        return Output().add_as_json({"value": float("nan")})
    if case == "header":
        return Output().add("x").add_property("X-Bad", "a\\r\\nSet-Cookie: b").add_property("Content-Length", "7")
    if case == "sys.exit":
        sys.exit(3)
    if case == "os._exit":
        os._exit(5)
    if case == "loop":
        while True:
            pass
    if case == "fork":
        if os.fork() == 0:
            return Output().add("child")
        return Output().add("parent")
    if case == "fork and die":
        if os.fork() == 0:
            time.sleep(600)
        os._exit(6)
    if case == "leave a process":
        if (pid := os.fork()) == 0:
            time.sleep(600)
        with open(inputs.get_as_string(), "w") as file:
            file.write(str(pid))
        os._exit(8)
    if case == "rubbish":
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, b"rubbish" * 100)
            except OSError:
                pass
        time.sleep(30)
    if case == "pid":
        return Output().add(str(os.getpid()))
    if case == "die later":
        threading.Timer(0.1, os._exit, [7]).start()
        return Output().add("alive")
    raise KeyError(case)
"""

CRASHES = """
import os
from djl_python import Output

calls = 0


def handle(inputs):
    global calls
    if inputs.is_empty():
        return None
    calls += 1
    if calls % 20 == 0:
        os.abort()
    return Output().add_as_json(inputs.get_as_json() * 2)
"""

SENTIMENT = """
import logging
import os

from djl_python import Input, Output

import labels  # a sibling


class SentimentService:
    def __init__(self):
        self.initialized = False

    def initialize(self, properties):
        self.threshold = float(properties.get("threshold", "0.5"))
        self.model_dir = properties["model_dir"]
        self.device = "cpu" if properties.get("device_id", "-1") == "-1" else f"cuda:{properties['device_id']}"
        with open("settings.json") as file:  # relative to the model's folder
            logging.info("settings %s", file.read())
        self.initialized = True

    def inference(self, inputs):
        try:
            data = inputs.get_as_json()
            scores = [text.count("good") / len(text.split()) for text in data["inputs"]]
            outputs = Output()
            outputs.add_as_json([{"label": labels.name(score > self.threshold), "score": score} for score in scores])
        except Exception as e:
            logging.exception("inference failed")
            outputs = Output().error(str(e))
        return outputs


_service = SentimentService()


def handle(inputs: Input) -> Output:
    if not _service.initialized:
        _service.initialize(inputs.get_properties())
    if inputs.is_empty():
        return None
    return _service.inference(inputs)
"""

ARRAYS = """
import numpy as np

from djl_python.inputs import Input
from djl_python.outputs import Output


def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        return None
    if inputs.get_property("content-type") == "text/csv":
        rows = inputs.get_as_csv()
        total = np.sum([[float(row["a"]), float(row["b"])] for row in rows], axis=0)
        return Output().add_as_json({"total": total, "count": np.int64(len(rows))})
    arrays = inputs.get_as_numpy()
    if inputs.get_property("accept") == "tensor/npz":
        return Output().add_as_npz([array * 2 for array in arrays]).add_property("Content-Type", "tensor/npz")
    return Output().add_as_numpy([array * 2 for array in arrays]).add_property("Content-Type", "tensor/ndlist")
"""

STREAMER = '''
import queue
import threading

from djl_python import Input, Output


class TextIterator:
    """As transformers' TextIteratorStreamer: a thread puts text, the handler's stream takes it."""

    def __init__(self):
        self.queue = queue.Queue()

    def __iter__(self):
        return self

    def __next__(self):
        text = self.queue.get(timeout=10)
        if text is None:
            raise StopIteration
        return text


def generate(prompt, streamer):
    for word in prompt.split():
        streamer.queue.put([word + " "])
    streamer.queue.put(None)


def handle(inputs: Input):
    if inputs.is_empty():
        return None
    streamer = TextIterator()
    threading.Thread(target=generate, args=(inputs.get_as_json()["inputs"], streamer)).start()
    outputs = Output()
    outputs.add_property("content-type", "application/jsonlines")
    outputs.add_stream_content(streamer)
    return outputs
'''

BATCHES = """
from djl_python import Input, Output
from djl_python.encode_decode import decode


def handle(inputs: Input) -> Output:
    if inputs.is_empty():
        return None
    batch = inputs.get_batches()
    outputs = Output()
    if any(item.get_property("X-Fail") for item in batch):
        raise ValueError("one of them is bad")
    for index, item in enumerate(batch):
        value = decode(item, item.get_property("content-type"))
        outputs.add({"value": value["x"], "batch": inputs.is_batch(), "size": len(batch)}, batch_index=index)
    return outputs
"""

ASYNCHRONOUS = """
import asyncio

from djl_python import Output


async def pieces(words):
    for word in words:
        await asyncio.sleep(0)
        yield word


async def handle(inputs):
    await asyncio.sleep(0)
    if inputs.is_empty():
        return None
    return Output().add_stream_content(pieces(inputs.get_as_string().split()))
"""
