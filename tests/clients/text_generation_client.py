"""text-generation, TGI's own client: `Client` and `AsyncClient`."""

from __future__ import annotations

from typing import Any

from calls import Calls, Task, main
from text_generation import AsyncClient, Client
from text_generation.types import Grammar, GrammarType, Message, Tool


def calls(task: Task) -> Calls:
    client, asynchronous = Client(task.model, timeout=60), AsyncClient(task.model, timeout=60)
    prompt, new = task.prompt, task.max_tokens
    return {
        "generate": lambda: client.generate(prompt, max_new_tokens=new),
        "generate_stream": lambda: client.generate_stream(prompt, max_new_tokens=new),
        "async_generate": lambda: asynchronous.generate(prompt, max_new_tokens=new),
        "async_generate_stream": lambda: asynchronous.generate_stream(prompt, max_new_tokens=new),
        "defaults": lambda: client.generate(prompt),
        "full_text": lambda: client.generate(prompt, max_new_tokens=new, return_full_text=True),
        "stop": lambda: client.generate(prompt, max_new_tokens=new, stop_sequences=[task.stop]),
        "seed": lambda: client.generate(prompt, max_new_tokens=new, do_sample=True, seed=7),
        "best_of": lambda: client.generate(prompt, max_new_tokens=new, do_sample=True, best_of=2),
        "top_n_tokens": lambda: client.generate_stream(prompt, max_new_tokens=new, top_n_tokens=2),
        "prefill": lambda: client.generate(prompt, max_new_tokens=new, decoder_input_details=True),
        "json": lambda: client.generate(
            prompt, max_new_tokens=96, grammar=Grammar(type=GrammarType.Json, value=task.schema)
        ),
        "regex": lambda: client.generate(
            prompt, max_new_tokens=new, grammar=Grammar(type=GrammarType.Regex, value=task.regex)
        ),
    }


def chat(task: Task) -> Calls:
    client, asynchronous = Client(task.model, timeout=60), AsyncClient(task.model, timeout=60)
    messages = [Message(role="user", content=task.prompt)]
    ask: dict[str, Any] = {"max_tokens": task.max_tokens, "temperature": 0.0}
    tools = [Tool(**task.tool)]
    return {
        "chat": lambda: client.chat(messages, **ask),
        "async_chat": lambda: asynchronous.chat(messages, **ask),
        "chat_tool": lambda: client.chat(
            messages, tools=tools, tool_choice=task.tool["function"]["name"], max_tokens=96, temperature=0.0
        ),
    }


def errors(task: Task) -> Calls:
    echo, full = Client(task.echo, timeout=60), Client(task.full, timeout=60)
    asynchronous = AsyncClient(task.echo, timeout=60)
    unfit = list("abcde")  # one more than allowed
    return {
        "invalid": lambda: echo.generate("hello", stop_sequences=unfit),
        "invalid_stream": lambda: echo.generate_stream("hello", stop_sequences=unfit),
        "async_invalid": lambda: asynchronous.generate("hello", stop_sequences=unfit),
        "async_invalid_stream": lambda: asynchronous.generate_stream("hello", stop_sequences=unfit),
        "failed": lambda: echo.generate("hello RAISE@2"),
        "failed_stream": lambda: echo.generate_stream("hello RAISE@2"),
        "async_failed_stream": lambda: asynchronous.generate_stream("hello RAISE@2"),
        "overloaded": lambda: full.generate("hello"),
        "overloaded_stream": lambda: full.generate_stream("hello"),
    }


if __name__ == "__main__":
    main(lambda task: calls(task) | chat(task) | errors(task))
