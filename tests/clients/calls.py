"""Shared by the scripts in this folder, each of which calls a server with one client library.

`python SCRIPT.py TASK` prints what each call of the script returned or raised. TASK is a `Task` as JSON:

    {"text": {"returned": " Paris."}, "refused": {"raised": "text_generation.errors.ValidationError", "message": "..."}}
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

Calls = dict[str, Callable[[], object]]
"""Calls by name. If a call returns an iterator, an async iterator or an awaitable, the results are collected."""


@dataclasses.dataclass(frozen=True)
class Task:
    """What to request, and the base URLs of the servers."""

    model: str
    """A server with the small model."""
    echo: str
    """A server that echoes prompts and fails if they say so."""
    full: str
    """A server whose queue is full."""
    prompt: str
    max_tokens: int
    stop: str
    schema: dict[str, Any]
    regex: str
    tool: dict[str, Any]
    """A function in OpenAI's format."""
    tool_choice: dict[str, Any]
    """Forces the call of `tool`, in OpenAI's format."""
    tokenizer: str = ""
    """A folder with the small model's tokenizer, for clients that count tokens."""


def main(calls: Callable[[Task], Calls]) -> None:
    """Run the calls one after the other and print the results."""
    task = Task(**json.loads(sys.argv[1]))
    with contextlib.closing(
        asyncio.new_event_loop()
    ) as loop:  # one loop for all, because kept connections belong to it
        outcomes = {name: _outcome(call, loop) for name, call in calls(task).items()}
    json.dump(outcomes, sys.stdout, default=_plain)


def _outcome(call: Callable[[], object], loop: asyncio.AbstractEventLoop) -> dict[str, object]:
    try:
        value = call()
        if isinstance(value, Iterator):
            value = list(value)
        elif isinstance(value, (Awaitable, AsyncIterator)):
            value = loop.run_until_complete(_awaited(value))
    except Exception as error:  # noqa: BLE001  the test checks whatever a client raises
        kind = type(error)
        return {"raised": f"{kind.__module__}.{kind.__qualname__}", "message": str(error)}
    return {"returned": value}


async def _awaited(value: Awaitable[object] | AsyncIterator[object]) -> object:
    result: object = await value if isinstance(value, Awaitable) else value
    return [item async for item in result] if isinstance(result, AsyncIterator) else result


def _plain(value: Any) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value.model_dump(mode="json")  # pydantic
