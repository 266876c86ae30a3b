"""aleph-alpha-client: chat, whole and streamed, on Aleph Alpha's route; what that one refuses on OpenAI's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from aleph_alpha_client import AsyncClient, Client
from aleph_alpha_client.chat import ChatRequest, Message, Role, StreamOptions, ToolFunction
from aleph_alpha_client.structured_output import JSONSchema
from calls import Calls, Task, main


def request(content: str, **asked: Any) -> Any:
    messages = [Message(role=Role.User, content=content)]
    return ChatRequest(model="tgi", messages=messages, temperature=0.0, **asked)


def whole(url: str, content: str, **asked: Any) -> object:
    client = Client(token="none", host=url, total_retries=0)
    return client.chat(request(content, **asked), model="tgi")


async def streamed(url: str, content: str, **asked: Any) -> AsyncIterator[object]:
    async with AsyncClient(token="none", host=url, total_retries=0) as client:
        async for item in client.chat_with_streaming(request(content, **asked), model="tgi"):
            yield item


def calls(task: Task) -> Calls:
    tool: dict[str, Any] = {"tools": [task.tool], "tool_choice": ToolFunction(**task.tool_choice)}
    schema = JSONSchema(schema=task.schema, name="answer", description="an answer", strict=True)
    return {
        "chat": lambda: whole(task.echo, task.prompt),
        "stream": lambda: streamed(task.echo, task.prompt),
        "usage": lambda: streamed(task.echo, task.prompt, stream_options=StreamOptions(include_usage=True)),
        "bounded": lambda: whole(task.echo, task.prompt, maximum_tokens=3),
        "json": lambda: whole(f"{task.model}/v1", task.prompt, response_format=schema),
        "tool": lambda: whole(f"{task.model}/v1", task.prompt, **tool),
        "tool_stream": lambda: streamed(f"{task.model}/v1", task.prompt, **tool),
        "invalid": lambda: whole(task.echo, "hello", top_p=7.0),
        "overloaded": lambda: whole(task.full, "hello"),
    }


if __name__ == "__main__":
    main(calls)
