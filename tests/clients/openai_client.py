"""openai: `OpenAI` and `AsyncOpenAI`, chat."""

from __future__ import annotations

from typing import Any

from calls import Calls, Task, main
from openai import AsyncOpenAI, OpenAI


def calls(task: Task) -> Calls:
    chat: Any = OpenAI(base_url=f"{task.model}/v1", api_key="none", max_retries=0).chat.completions.create
    asynchronous: Any = AsyncOpenAI(base_url=f"{task.model}/v1", api_key="none", max_retries=0).chat.completions.create
    ask: dict[str, Any] = {
        "model": "tgi",
        "messages": [{"role": "user", "content": task.prompt}],
        "max_tokens": task.max_tokens,
        "temperature": 0,
    }
    longer = ask | {"max_tokens": 96}
    tool = {"tools": [task.tool], "tool_choice": task.tool_choice}
    schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": task.schema}}
    return {
        "chat": lambda: chat(**ask),
        "stream": lambda: chat(stream=True, **ask),
        "async_chat": lambda: asynchronous(**ask),
        "async_stream": lambda: asynchronous(stream=True, **ask),
        "usage": lambda: chat(stream=True, stream_options={"include_usage": True}, **ask),
        "logprobs": lambda: chat(logprobs=True, top_logprobs=2, **ask),
        "stop": lambda: chat(stop=task.stop, **ask),
        "json": lambda: chat(response_format=schema, **longer),
        "tool": lambda: chat(**tool, **longer),
        "tool_stream": lambda: chat(stream=True, **tool, **longer),
    }


def errors(task: Task) -> Calls:
    def chat(url: str, content: str, **asked: Any) -> object:
        client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        messages: Any = [{"role": "user", "content": content}]
        return client.chat.completions.create(model="tgi", messages=messages, **asked)

    return {
        "invalid": lambda: chat(task.echo, "hello", top_p=7),
        "failed": lambda: chat(task.echo, "RAISE@2"),
        "failed_stream": lambda: chat(task.echo, "RAISE@2", stream=True),
        "overloaded": lambda: chat(task.full, "hello"),
    }


if __name__ == "__main__":
    main(lambda task: calls(task) | errors(task))
