"""anthropic: `Anthropic` and `AsyncAnthropic`; messages with their helpers, tools, images, token counts and errors."""

from __future__ import annotations

from typing import Any

from anthropic import Anthropic, AsyncAnthropic
from calls import Calls, Task, main
from pydantic import BaseModel

CALL = '<tool_call>{"name": "rank_city", "arguments": {"city": "Rome", "rank": 2}}</tool_call>'
"""The text of a model that calls the tool. The echo server returns it."""


class City(BaseModel):
    """A city and its rank."""

    city: str
    rank: int


def synchronous(url: str) -> Any:
    return Anthropic(base_url=url, api_key="none", max_retries=0)


def asynchronous(url: str) -> Any:
    return AsyncAnthropic(base_url=url, api_key="none", max_retries=0)


def messages(task: Task) -> Calls:
    """Answers by the model."""
    client, acreate = synchronous(task.model).messages, asynchronous(task.model).messages.create
    text = {"type": "text", "text": task.prompt, "cache_control": {"type": "ephemeral"}}
    ask: dict[str, Any] = {
        "model": "any",
        "max_tokens": task.max_tokens,
        "messages": [{"role": "user", "content": [text]}],
        "extra_body": {"temperature": 0},  # the client's own parameter is gone
    }

    def helped() -> object:
        with client.stream(**ask) as stream:
            kinds = [event.type for event in stream]
            return {"events": kinds, "message": stream.get_final_message()}

    def request_id() -> object:
        return client.create(**ask)._request_id

    counted = {name: ask[name] for name in ("model", "messages")}
    return {
        "message": lambda: client.create(**ask),
        "async_message": lambda: acreate(**ask),
        "stream": lambda: client.create(stream=True, **ask),
        "async_stream": lambda: acreate(stream=True, **ask),
        "helper": helped,
        "stop": lambda: client.create(stop_sequences=[task.stop], **ask),
        "count": lambda: client.count_tokens(**counted),
        "request_id": request_id,
        "parsed": lambda: client.parse(output_format=City, **ask | {"max_tokens": 96}).parsed_output,
    }


def tools(task: Task) -> Calls:
    """A forced call by the model, and a free one by the echo server."""
    function = task.tool["function"]
    tool = {"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}
    client, free = synchronous(task.model).messages, synchronous(task.echo).messages
    ask: dict[str, Any] = {"model": "any", "max_tokens": 96, "tools": [tool], "extra_body": {"temperature": 0}}
    asked = {"messages": [{"role": "user", "content": task.prompt}], **ask}
    told = {"messages": [{"role": "user", "content": CALL}], **ask, "max_tokens": 2048}

    def streamed() -> object:
        with free.stream(**told) as stream:
            kinds = [event.type for event in stream]
            return {"events": kinds, "message": stream.get_final_message()}

    def conversation() -> object:
        called = free.create(**told)
        use = next(block for block in called.content if block.type == "tool_use")
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "It is sunny."}
        history = [
            *told["messages"],
            {"role": "assistant", "content": called.content},
            {"role": "user", "content": [result]},
        ]
        return free.create(**told | {"messages": history})

    named = {"type": "tool", "name": function["name"]}
    single = {"type": "any", "disable_parallel_tool_use": True}
    return {
        "named": lambda: client.create(tool_choice=named, **asked),
        "any": lambda: client.create(tool_choice=single, **asked),
        "auto": lambda: free.create(**told),
        "auto_helper": streamed,
        "none": lambda: free.create(tool_choice={"type": "none"}, **told),
        "conversation": conversation,
        "count_tools": lambda: client.count_tokens(**{name: asked[name] for name in ("model", "messages", "tools")}),
    }


def errors(task: Task) -> Calls:
    ask: dict[str, Any] = {"model": "any", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}
    fault = [{"role": "user", "content": "RAISE@2"}]
    echo, full = synchronous(task.echo), synchronous(task.full)
    return {
        "refused": lambda: echo.messages.create(stop_sequences=[""], **ask),
        "unknown": lambda: echo.messages.create(extra_body={"unheard_of": 1}, **ask),
        "not_found": lambda: echo.messages.batches.list(),
        "full": lambda: full.messages.create(**ask),
        "failed": lambda: echo.messages.create(stream=True, **ask | {"messages": fault}),
        "models": lambda: [model.id for model in echo.models.list()],
    }


if __name__ == "__main__":
    main(lambda task: messages(task) | tools(task) | errors(task))
