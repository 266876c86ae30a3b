"""A stand-in for a remote engine: speaks the published protocols, and misbehaves in every way that a prompt asks for.

Its model counts: the token after `t` is `t + 1`. The first token of a prompt may be one of `FAULTS`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

VOCAB_SIZE = 49152
MAX_MODEL_LEN = 2048

HANG, DROP, RUBBISH, WRONG_TYPE, WRONG_ID, NEGATIVE_ID, TOO_MANY, NO_END, LONG_LINE, EMPTY, NOT_EVENTS, MOVED = range(
    1000, 1012
)
REFUSED, OVERLOADED, ERROR_EVENT, UNKNOWN_END, WRONG_ALTERNATIVE, PIECES, TOO_BUSY = range(1012, 1019)


class TokenServer:
    """Listens on a loopback port, or on the Unix socket whose path `port` is. Runs in a thread of this process.

    `tokens` are its tokens of any text, None if it does not say. With a `key`, it refuses requests without it.
    `pace` is the time between two tokens of a stream. `bodies` are the requests that it has got, `running` is how many it
    answers just now, `looks` how often it was asked for its health. So many requests as `not_ready` says are answered with
    `not_ready_status`, except those about its health.
    """

    def __init__(
        self, port: int | str = 0, *, tokens: list[int] | None = None, key: str | None = None, pace: float = 0.0
    ) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.running = 0
        self.abandoned = 0
        self.hangs = False
        self.sick = False
        self.looks = 0
        self.not_ready = 0
        self.not_ready_status = 502
        self._tokens = tokens
        self._key = key
        self._pace = pace
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._runner = self._run(self._listen(port))
        if isinstance(port, int):
            self.port: int = self._runner.addresses[0][1]
            self.url = f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Close all connections, as a process that ends does. A second call does nothing."""
        if self._loop.is_closed():
            return
        self._run(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self, port: int | str) -> web.AppRunner:
        app = web.Application(middlewares=[self._guard], client_max_size=1 << 26)
        app.add_routes(self.routes())
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        if isinstance(port, str):
            await web.UnixSite(runner, port).start()
        else:
            await web.TCPSite(runner, "127.0.0.1", port).start()
        return runner

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if self.hangs:
            await asyncio.sleep(3600)
        if request.path == "/health":
            self.looks += 1
            return web.Response(status=503 if self.sick else 200)
        if self.not_ready:
            self.not_ready -= 1
            return web.Response(status=self.not_ready_status)
        if (
            request.path != "/version"
            and self._key is not None
            and request.headers.get("Authorization") != f"Bearer {self._key}"
        ):
            return web.json_response({"error": "Unauthorized"}, status=401)
        return await handler(request)

    def routes(self) -> list[web.RouteDef]:
        """vLLM's."""

        async def version(request: web.Request) -> web.Response:
            return web.json_response({"version": "0.32.0"})

        async def models(request: web.Request) -> web.Response:
            model = {"id": "counting", "owned_by": "vllm", "max_model_len": MAX_MODEL_LEN}
            return web.json_response({"object": "list", "data": [model]})

        async def tokenize(request: web.Request) -> web.Response:
            if self._tokens is None:
                return web.json_response({"detail": "Not Found"}, status=404)
            return web.json_response({"count": len(self._tokens), "tokens": self._tokens})

        return [
            web.get("/version", version),
            web.get("/v1/models", models),
            web.post("/tokenize", tokenize),
            web.post("/inference/v1/generate", self._generate),
        ]

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if "token_ids" not in body:
            return web.json_response({"error": {"message": "Field required", "code": 400}}, status=400)
        self.bodies.append(body)
        self.running += 1
        try:
            return await self._answer(request, body)
        except (asyncio.CancelledError, ConnectionResetError):
            self.abandoned += 1
            raise
        finally:
            self.running -= 1

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        params, fault = body["sampling_params"], body["token_ids"][0]
        if fault == REFUSED:
            return web.json_response({"error": {"message": "top_k is odd", "code": 400}}, status=400)
        if fault == OVERLOADED:
            return web.Response(status=503, text="busy\n\x1b[31m" + "x" * 5000)
        if fault == NOT_EVENTS:
            return web.Response(body=b"{}", headers={"Content-Type": "application/json\N{ZERO WIDTH SPACE}"})
        if fault == MOVED:
            return web.Response(status=307, headers={"Location": "http://127.0.0.1:9/"})
        if not body["stream"]:
            return web.json_response(_whole(body))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        last, count = body["token_ids"][-1], params["max_tokens"]
        for number in range(1, count + 1):
            choice: dict[str, Any] = {"index": 0, "token_ids": [(last + number) % VOCAB_SIZE], "finish_reason": None}
            if params.get("logprobs") is not None:
                choice["logprobs"] = {"content": [_position(choice["token_ids"][0], params["logprobs"])]}
            if number == count:
                choice["finish_reason"] = "length"
            if number == 2 and fault in _EVENTS:
                await response.write(_EVENTS[fault])
                if fault in (HANG, LONG_LINE):
                    await asyncio.sleep(3600)
                if fault == DROP:
                    assert request.transport is not None
                    request.transport.abort()
                if fault == NO_END:
                    return response
            event = _event({"request_id": "r", "choices": [choice]})
            for start in range(0, len(event), 1 if fault == PIECES else len(event)):
                await response.write(event[start : start + 1] if fault == PIECES else event)
            await asyncio.sleep(self._pace)  # all streams take turns, as in an engine's steps
        await response.write(b"data: [DONE]\n\n")
        return response


class SGLangServer(TokenServer):
    """Speaks SGLang's protocol, as its types are published. `incremental` is its `--incremental-streaming-output`."""

    deterministic = True
    incremental = False

    def routes(self) -> list[web.RouteDef]:
        async def model_info(request: web.Request) -> web.Response:
            return web.json_response({"model_path": "counting", "tokenizer_path": "counting", "is_generation": True})

        async def server_info(request: web.Request) -> web.Response:
            return web.json_response({"enable_deterministic_inference": self.deterministic, "version": "0.5"})

        async def models(request: web.Request) -> web.Response:
            return web.json_response({"data": [{"id": "counting", "max_model_len": MAX_MODEL_LEN}]})

        return [
            web.get("/get_model_info", model_info),
            web.get("/get_server_info", server_info),
            web.get("/v1/models", models),
            web.post("/generate", self._stream),
        ]

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        params, last = body["sampling_params"], body["input_ids"][-1]
        for count in range(1, params["max_new_tokens"] + 1):
            token = last + count
            end = {"type": "length", "length": count} if count == params["max_new_tokens"] else None
            if token in params["stop_token_ids"]:
                end = {"type": "stop", "matched": token}
            numbers = range(count if self.incremental else 1, count + 1)
            meta: dict[str, Any] = {"completion_tokens": count, "cached_tokens": 1, "finish_reason": end}
            if body.get("return_logprob"):
                meta["output_token_logprobs"] = [[-0.5, last + number, None] for number in numbers]
                top = [[[-0.5 - rank, last + number + rank, None] for rank in range(2)] for number in numbers]
                meta["output_top_logprobs"] = top
            await response.write(
                _event({"text": "", "output_ids": [last + number for number in numbers], "meta_info": meta})
            )
            if end is not None:
                break
        await response.write(b"data: [DONE]\n\n")
        return response


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def _with_tokens(*tokens: Any, **fields: Any) -> bytes:
    return _event({"choices": [{"index": 0, "token_ids": list(tokens), **fields}]})


_TOO_HIGH = [{"token_id": 2**70, "logprob": -1.0}]
_EVENTS = {
    HANG: b"",
    DROP: b"",
    NO_END: b"",
    RUBBISH: b"data: {\x00\xff\n\n",
    WRONG_TYPE: _with_tokens("three"),
    WRONG_ID: _with_tokens(2**40),
    NEGATIVE_ID: _with_tokens(-1),
    TOO_MANY: _with_tokens(*range(5000)),
    LONG_LINE: b"data: " + b"x" * (3 << 20),
    EMPTY: _event({"choices": []}) * 2000,
    ERROR_EVENT: _event({"error": {"message": "out of blocks", "code": 500}}),
    TOO_BUSY: _event({"error": {"message": "the queue is full", "code": "429"}}),
    WRONG_ALTERNATIVE: _with_tokens(
        7, logprobs={"content": [{"token_id": 7, "logprob": -0.5, "top_logprobs": _TOO_HIGH}]}
    ),
    UNKNOWN_END: _with_tokens(finish_reason="repetition\nof everything"),
}


def _position(token: int, count: int) -> dict[str, Any]:
    top = [{"token_id": (token + rank) % VOCAB_SIZE, "logprob": -0.5 - rank, "rank": rank + 1} for rank in range(count)]
    return {"token_id": token, "logprob": -0.5, "rank": 1, "top_logprobs": top}


def _whole(body: dict[str, Any]) -> dict[str, Any]:
    prompt, params = body["token_ids"], body["sampling_params"]
    tokens = [(prompt[-1] + number) % VOCAB_SIZE for number in range(1, params["max_tokens"] + 1)]
    of_prompt = [None, *({str(token): {"logprob": -2.0, "rank": 1}} for token in prompt[1:])]
    choice = {"index": 0, "token_ids": tokens, "finish_reason": "length"}
    return {"request_id": "r", "choices": [choice], "prompt_logprobs": of_prompt}


if __name__ == "__main__":
    TokenServer(int(sys.argv[1]) if sys.argv[1].isdecimal() else sys.argv[1])
    while True:
        time.sleep(3600)
