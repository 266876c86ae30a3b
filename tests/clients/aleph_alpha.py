"""aleph-alpha-client: chat and text completions, with and without streaming, on Aleph Alpha's routes, and errors on OpenAI's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from aleph_alpha_client import AsyncClient, Client
from aleph_alpha_client.chat import ChatRequest, Message, Role, StreamOptions, ToolFunction
from aleph_alpha_client.completion import CompletionRequest
from aleph_alpha_client.prompt import Image, Prompt, Text, TextControl
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


def complete(url: str, prompt: Prompt, **asked: Any) -> object:
    client = Client(token="none", host=url, total_retries=0)
    return client.complete(CompletionRequest(prompt, **asked), model="tgi")


async def complete_async(url: str, prompt: Prompt, **asked: Any) -> object:
    async with AsyncClient(token="none", host=url, total_retries=0) as client:
        return await client.complete(CompletionRequest(prompt, **asked), model="tgi")


async def complete_streamed(url: str, prompt: Prompt, **asked: Any) -> AsyncIterator[object]:
    async with AsyncClient(token="none", host=url, total_retries=0) as client:
        async for item in client.complete_with_streaming(CompletionRequest(prompt, **asked), model="tgi"):
            yield item


def calls(task: Task) -> Calls:
    tool: dict[str, Any] = {"tools": [task.tool], "tool_choice": ToolFunction(**task.tool_choice)}
    schema = JSONSchema(schema=task.schema, name="answer", description="an answer", strict=True)
    prompt, bounded = Prompt.from_text(task.prompt), {"maximum_tokens": task.max_tokens}
    detailed = bounded | {"log_probs": 2, "tokens": True}
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
        "complete": lambda: complete(task.model, prompt, **bounded),
        "complete_details": lambda: complete(task.model, prompt, **detailed),
        "complete_async": lambda: complete_async(task.model, prompt, **detailed),
        "complete_stream": lambda: complete_streamed(task.model, prompt, **detailed),
        "complete_stop": lambda: complete(task.model, prompt, stop_sequences=[task.stop], **bounded),
        "complete_stop_stream": lambda: complete_streamed(task.model, prompt, stop_sequences=[task.stop], **bounded),
        "complete_echo": lambda: complete(task.model, prompt, echo=True, maximum_tokens=0, log_probs=0, tokens=True),
        "complete_token_ids": lambda: complete(task.echo, Prompt.from_tokens([104, 105])),
        "complete_controls": lambda: complete(task.echo, Prompt([Text("hi", [TextControl(0, 1, 0.5)])])),
        "complete_image": lambda: complete(task.echo, Prompt.from_image(Image.from_bytes(b"no image"))),
        "complete_failed_stream": lambda: complete_streamed(task.echo, Prompt.from_text("RAISE@2")),
        "complete_overloaded": lambda: complete(task.full, prompt),
    }


if __name__ == "__main__":
    main(calls)
