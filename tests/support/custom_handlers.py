"""Files `model.py` that do, well or badly, what a test asks for."""

from __future__ import annotations

ON_REQUEST = """
import asyncio, json, multiprocessing, os, signal, socket, subprocess, sys, threading, time
from concurrent.futures import ProcessPoolExecutor
from djl_python import Input, Output

started = []


def square(number):
    return number * number


def fail(*_):
    raise OSError("a socket of the handler's own")


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
        return Output().add_stream_content(lines(3), None).add_property("Content-Type", "application/jsonlines")
    if case == "stream lists":
        return Output().add_stream_content(iter([["a"], ["\\u00e9"]]))
    if case == "stream formatted":
        return Output().add_stream_content(iter("ab"), output_formatter=lambda item: f"<{item}>")
    if case == "stream raises":
        return Output().add_stream_content(lines(2, raises=True), None).add_property("Content-Type", "application/jsonlines")
    if case == "stream raises at once":
        return Output().add_stream_content(lines(0, raises=True), None)
    if case == "stream for ever":
        return Output().add_stream_content(slowly(inputs.get_as_string()), None)
    if case == "stream dies":
        parts = (part if part != "die" else os._exit(4) for part in ("good\\n", "die"))
        return Output().add_stream_content(parts, None)
    if case == "asynchronous":
        return answer_later(inputs)
    if case == "asynchronous stream":
        return Output().add_stream_content(numbers(), None)
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
        return Output().add_as_json([sys.argv, sys.path[sys.path.index(os.getcwd()) + 1 :], sys.stdin.read()])
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
    if case == "code of a stream":
        return (Output(code=99).add(part) for part in ("one", "two"))
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
    if case in ("fork", "spawn", "forkserver") and inputs.contains_key("workers"):
        with ProcessPoolExecutor(2, multiprocessing.get_context(case)) as pool:
            return Output().add_as_json(list(pool.map(square, range(4))))
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
    if case == "close descriptors":
        os.closerange(3, 1000)
        return Output().add("closed")
    if case == "huge":
        return Output().add(bytes(2 << 30))
    if case == "huge stream":
        return Output().add_stream_content(iter(["small", bytes(2 << 30)]), None)
    if case == "signals":
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        while True:
            pass
    if case == "leave a thread":
        threading.Thread(target=time.sleep, args=(600,)).start()
        return Output().add("left")
    if case == "leave a program":
        return Output().add(str(subprocess.Popen(["sleep", "600"]).pid))
    if case == "replace sockets":
        socket.socket.sendall = socket.socket.send = socket.socket.close = fail
        socket.socket = socket.create_connection = fail
        return Output().add("replaced")
    if case == "pid":
        return Output().add(str(os.getpid()))
    if case == "die later":
        threading.Timer(0.1, os._exit, [7]).start()
        return Output().add("alive")
    raise KeyError(case)
"""

CRASHES = """
import json, os
from djl_python import Output

calls = 0


def parts(value):
    yield {"value": value}
    if calls % 20 == 0:
        os.abort()
    yield {"twice": value * 2}


def handle(inputs):
    global calls
    if inputs.is_empty():
        return None
    calls += 1
    value = inputs.get_as_json()
    if inputs.get_property("X-Stream"):
        return Output().add_stream_content(parts(value), lambda item: json.dumps(item) + "\\n")
    if calls % 20 == 0:
        os.abort()
    return Output().add_as_json(value * 2)
"""

PATCHED = """
from gevent import monkey

monkey.patch_all()

import time
from djl_python import Output


def parts():
    for _ in range(3):
        time.sleep(0.01)
        yield "part"


def handle(inputs):
    return None if inputs.is_empty() else Output().add_stream_content(parts(), None)
"""

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
    if any(item.get_property("X-Status") for item in batch):
        return [Output(int(item.get_property("X-Status"))).add(item.get_property("X-Status")) for item in batch]
    for index, item in enumerate(batch):
        value = decode(item, item.get_property("content-type"))
        outputs.add({"value": value["x"], "batch": inputs.is_batch(), "size": len(batch)}, batch_index=index)
    return outputs
"""

CONCURRENT = """
import asyncio, os, time
from djl_python import Output

waiting = []
ticks = 0


async def tick():
    global ticks
    while True:
        ticks += 1
        await asyncio.sleep(0.01)


async def flood(count):
    for _ in range(count):
        yield b"x" * 100_000


def slowly(count):
    for number in range(count):
        time.sleep(0.01)
        yield str(number)


def hangs():
    yield "begun"
    time.sleep(600)


async def handle(inputs):
    global ticking
    if inputs.is_empty():
        ticking = asyncio.create_task(tick())
        return None
    case, text = inputs.get_property("X-Case"), inputs.get_as_string()
    if case == "together":
        everyone = asyncio.Event()
        waiting.append(everyone)
        if len(waiting) == int(text):
            for event in waiting:
                event.set()
            waiting.clear()
        await everyone.wait()
        return Output().add(str(os.getpid()))
    if case == "wait":
        open(text + ".begun", "w").close()
        try:
            await asyncio.sleep(600)
        finally:
            open(text, "w").close()
    if case == "block":
        time.sleep(600)
    if case == "raise":
        await asyncio.sleep(0)
        raise ValueError(text)
    if case == "cancel":
        raise asyncio.CancelledError
    if case == "exit":
        os._exit(3)
    if case == "fork":
        return Output().add("child" if os.fork() == 0 else "parent")
    if case == "ticks":
        return Output().add(str(ticks))
    if case == "flood":
        return Output().add_stream_content(flood(int(text)), None)
    if case == "generator":
        return Output().add_stream_content(slowly(int(text)), None)
    if case == "hanging generator":
        return Output().add_stream_content(hangs(), None)
    return Output().add(str(os.getpid()))
"""

GENERATES = """
from djl_python import Output

loaded = []


async def handle(inputs):
    if inputs.is_empty():
        loaded.append("loaded")
        return
    for part in (*loaded, inputs.get_as_string()):
        yield Output().add(part).add_property("Content-Type", "text/plain")
"""

GROWS = """
import os, time
from djl_python import Output

if os.path.exists("broken"):
    raise OSError("no room for another one")


def handle(inputs):
    if inputs.is_empty():
        return None
    time.sleep(float(inputs.get_as_string()))
    return Output().add(str(os.getpid()))
"""
