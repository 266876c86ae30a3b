"""openai: `OpenAI` and `AsyncOpenAI`; chat and responses with their helpers, text completions, models and errors."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import openai
from calls import Calls, Task, main
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field

CALL = '<tool_call>{"name": "rank_city", "arguments": {"city": "Rome", "rank": 2}}</tool_call>'
"""The text of a model that calls the tool. The echo server returns it."""


class City(enum.Enum):
    PARIS = "Paris"
    ROME = "Rome"


class RankedCity(BaseModel):
    """Rank a city."""

    city: City
    rank: int = Field(ge=1, le=9)


def synchronous(url: str) -> Any:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def asynchronous(url: str) -> Any:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def chat_body(task: Task) -> dict[str, Any]:
    return {
        "model": "tgi",
        "messages": [{"role": "user", "content": task.prompt}],
        "max_tokens": task.max_tokens,
        "temperature": 0,
    }


def chat(task: Task) -> Calls:
    create = synchronous(task.model).chat.completions.create
    acreate = asynchronous(task.model).chat.completions.create
    ask = chat_body(task)
    return {
        "chat": lambda: create(**ask),
        "stream": lambda: create(stream=True, **ask),
        "async_chat": lambda: acreate(**ask),
        "async_stream": lambda: acreate(stream=True, **ask),
        "usage": lambda: create(stream=True, stream_options={"include_usage": True}, **ask),
        "logprobs": lambda: create(logprobs=True, top_logprobs=2, **ask),
        "stop": lambda: create(stop=task.stop, **ask),
        "choices": lambda: create(n=3, **ask),
    }


def formats(task: Task) -> Calls:
    """Structured outputs, with a schema or with the helpers that derive the schema from a class."""
    client, aclient = synchronous(task.model).chat.completions, asynchronous(task.model).chat.completions
    ask = chat_body(task) | {"max_tokens": 96}
    schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": task.schema}}
    function = openai.pydantic_function_tool(RankedCity)

    def streamed() -> object:
        with client.stream(response_format=RankedCity, **ask) as stream:
            kinds = [event.type for event in stream]
            return {"events": kinds, "parsed": stream.get_final_completion().choices[0].message.parsed}

    async def astreamed() -> object:
        async with aclient.stream(response_format=RankedCity, **ask) as stream:
            kinds = [event.type async for event in stream]
            return {"events": kinds, "parsed": (await stream.get_final_completion()).choices[0].message.parsed}

    async def aparsed() -> object:
        return (await aclient.parse(response_format=RankedCity, **ask)).choices[0].message.parsed

    def parsed_call(**choice: Any) -> object:
        message = client.parse(tools=[function], **choice, **ask).choices[0].message
        return message.tool_calls[0].function.parsed_arguments

    named = {"type": "function", "function": {"name": "RankedCity"}}
    return {
        "json": lambda: client.create(response_format=schema, **ask),
        "json_object": lambda: client.create(response_format={"type": "json_object"}, **ask),
        "parse": lambda: client.parse(response_format=RankedCity, **ask).choices[0].message.parsed,
        "async_parse": aparsed,
        "parse_stream": streamed,
        "async_parse_stream": astreamed,
        "parse_tool": lambda: parsed_call(tool_choice=named),
    }


def tools(task: Task) -> Calls:
    """A forced tool call from the model, and a free one from the echo server."""
    create = synchronous(task.model).chat.completions.create
    free = synchronous(task.echo).chat.completions
    forced = chat_body(task) | {"max_tokens": 96, "tools": [task.tool], "parallel_tool_calls": False}
    told: dict[str, Any] = {"model": "tgi", "messages": [{"role": "user", "content": CALL}], "tools": [task.tool]}

    def streamed() -> object:
        with free.stream(**told) as stream:
            kinds = [event.type for event in stream]
            [call] = stream.get_final_completion().choices[0].message.tool_calls
            return {"events": kinds, "function": call.function}

    return {
        "named": lambda: create(tool_choice=task.tool_choice, **forced),
        "named_stream": lambda: create(tool_choice=task.tool_choice, stream=True, **forced),
        "required": lambda: create(tool_choice="required", **forced),
        "required_stream": lambda: create(tool_choice="required", stream=True, **forced),
        "auto": lambda: free.create(tool_choice="auto", **told),
        "auto_stream": lambda: free.create(stream=True, **told),
        "auto_helper": streamed,
        "none": lambda: free.create(tool_choice="none", **told),
    }


def responses(task: Task) -> Calls:
    """Responses from the model, and free tool calls from the echo server."""
    client, free = synchronous(task.model).responses, synchronous(task.echo).responses
    acreate = asynchronous(task.model).responses.create
    ask: dict[str, Any] = {
        "model": "tgi",
        "input": task.prompt,
        "max_output_tokens": task.max_tokens,
        "temperature": 0,
    }
    tool = {"type": "function", **task.tool["function"]}
    forced = ask | {"max_output_tokens": 96, "tools": [tool], "parallel_tool_calls": False}
    told: dict[str, Any] = {"model": "tgi", "input": CALL, "tools": [tool]}
    parsing = ask | {"max_output_tokens": 96, "text_format": RankedCity}

    def helped(**asked: Any) -> object:
        with free.stream(**asked) as stream:
            kinds = [event.type for event in stream]
            return {"events": kinds, "response": stream.get_final_response()}

    def conversation() -> object:
        """Send the output back with the result of the call, as programs do."""
        first = free.create(**told)
        [call] = [item for item in first.output if item.type == "function_call"]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        asked = [{"role": "user", "content": "Call."}, *first.output, result]
        return free.create(model="tgi", input=asked).output_text

    return {
        "response": lambda: client.create(**ask),
        "response_text": lambda: client.create(**ask).output_text,
        "async_response": lambda: acreate(**ask),
        "response_stream": lambda: client.create(stream=True, **ask),
        "async_response_stream": lambda: acreate(stream=True, **ask),
        "response_logprobs": lambda: client.create(include=["message.output_text.logprobs"], top_logprobs=2, **ask),
        "response_helper": lambda: helped(model="tgi", input="Hello"),
        "response_parse": lambda: client.parse(**parsing).output_parsed,
        "response_named": lambda: client.create(tool_choice={"type": "function", "name": "rank_city"}, **forced),
        "response_required": lambda: client.create(tool_choice="required", **forced),
        "response_auto": lambda: helped(**told),
        "response_conversation": conversation,
        "response_retrieved": lambda: free.retrieve("resp_1"),
        "response_deleted": lambda: free.delete("resp_1"),
        "response_cancelled": lambda: free.cancel("resp_1"),
        "response_failed": lambda: free.create(model="tgi", input="RAISE@2", stream=True),
    }


def completions(task: Task) -> Calls:
    create = synchronous(task.model).completions.create
    acreate = asynchronous(task.model).completions.create
    ask: dict[str, Any] = {"model": "tgi", "prompt": task.prompt, "max_tokens": task.max_tokens, "temperature": 0}
    return {
        "completion": lambda: create(**ask),
        "completion_stream": lambda: create(stream=True, **ask),
        "async_completion": lambda: acreate(**ask),
        "async_completion_stream": lambda: acreate(stream=True, **ask),
        "completion_logprobs": lambda: create(logprobs=2, **ask),
        "completion_echo": lambda: create(logprobs=2, echo=True, **ask),
        "completion_prompts": lambda: create(**ask | {"prompt": [task.prompt, "One, two,"]}),
    }


def server(task: Task) -> Calls:
    """The list of models, and the headers of an answer."""
    client, messages = synchronous(task.model), chat_body(task)

    def raw() -> object:
        response = client.chat.completions.with_raw_response.create(extra_body={"unheard_of": 1}, **messages)
        return {"headers": dict(response.headers), "id": response.request_id, "parsed": response.parse()}

    return {
        "models": lambda: list(client.models.list()),
        "retrieved": lambda: client.models.retrieve(client.models.list().data[0].id),
        "raw": raw,
    }


def errors(task: Task) -> Calls:
    echo = synchronous(task.echo)

    def ask(client: Any, content: str, **asked: Any) -> object:
        return client.chat.completions.create(model="tgi", messages=[{"role": "user", "content": content}], **asked)

    def attributes(call: Callable[[], object]) -> object:
        """Return the fields of an error that programs read."""
        try:
            return call()
        except openai.APIStatusError as error:
            kind = type(error).__name__
            status = error.status_code
            return {"kind": kind, "status": status, "type": error.type, "param": error.param, "code": error.code}

    return {
        "invalid": lambda: attributes(lambda: ask(echo, "hello", top_p=7)),
        "invalid_type": lambda: attributes(lambda: ask(echo, "hello", max_tokens="many")),
        "invalid_stream": lambda: attributes(lambda: ask(echo, "hello", stream=True, n=0)),
        "invalid_completion": lambda: attributes(lambda: echo.completions.create(model="tgi", prompt="a", suffix="b")),
        "too_long": lambda: attributes(lambda: ask(echo, "x" * 5000)),
        "stored": lambda: attributes(lambda: echo.responses.create(model="tgi", input="a", previous_response_id="b")),
        "failed": lambda: attributes(lambda: ask(echo, "RAISE@2")),
        "failed_stream": lambda: ask(echo, "RAISE@2", stream=True),
        "overloaded": lambda: attributes(lambda: ask(synchronous(task.full), "hello")),
        "unknown_path": lambda: attributes(lambda: echo.moderations.create(input="hello")),
    }


if __name__ == "__main__":
    parts = (chat, formats, tools, responses, completions, server, errors)
    main(lambda task: {name: call for part in parts for name, call in part(task).items()})
