"""What the scripts here have in common.

`python SCRIPT.py TASK`, where TASK is a `Task` as JSON, prints what each of the script's calls returned or raised:

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
"""By name. A call may return an iterator, an async iterator, or something to await: it is gathered."""


@dataclasses.dataclass(frozen=True)
class Task:
    """What to ask, and the base URLs of whom to ask it."""

    model: str
    """Serves the small model."""
    echo: str
    """Sends prompts back, and fails where they say so."""
    full: str
    """Has no room for a request."""
    prompt: str
    max_tokens: int
    stop: str
    schema: dict[str, Any]
    regex: str
    tool: dict[str, Any]
    """A function in OpenAI's form."""
    tool_choice: dict[str, Any]
    """That it is to be called."""
    tokenizer: str = ""
    """A folder with the small model's, for who counts tokens."""


def main(calls: Callable[[Task], Calls]) -> None:
    """Do the calls one after the other, print the document."""
    task = Task(**json.loads(sys.argv[1]))
    with contextlib.closing(asyncio.new_event_loop()) as loop:  # one for all: connections that are kept belong to it
        outcomes = {name: _outcome(call, loop) for name, call in calls(task).items()}
    json.dump(outcomes, sys.stdout, default=_plain)


def _outcome(call: Callable[[], object], loop: asyncio.AbstractEventLoop) -> dict[str, object]:
    try:
        value = call()
        if isinstance(value, Iterator):
            value = list(value)
        elif isinstance(value, (Awaitable, AsyncIterator)):
            value = loop.run_until_complete(_awaited(value))
    except Exception as error:  # noqa: BLE001  whatever a client raises is what the test asks for
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
