"""huggingface_hub: `InferenceClient` and `AsyncInferenceClient`, their calls for TGI, and chat."""

from __future__ import annotations

from typing import Any

from calls import Calls, Task, main
from huggingface_hub import AsyncInferenceClient, InferenceClient


def text_generation(task: Task) -> Calls:
    client = InferenceClient(task.model, timeout=60)
    generate: Any = client.text_generation  # its overloads do not accept a dict of arguments
    endpoint = InferenceClient(task.model, provider="hf-inference")  # these two calls support no other provider
    prompt = task.prompt
    ask: dict[str, Any] = {"max_new_tokens": task.max_tokens, "return_full_text": False}
    asynchronous: Any = AsyncInferenceClient(task.model, timeout=60).text_generation
    return {
        "text": lambda: generate(prompt, **ask),
        "details": lambda: generate(prompt, details=True, **ask),
        "stream": lambda: generate(prompt, stream=True, **ask),
        "stream_details": lambda: generate(prompt, stream=True, details=True, **ask),
        "async_text": lambda: asynchronous(prompt, **ask),
        "async_stream": lambda: asynchronous(prompt, stream=True, **ask),
        "full_text": lambda: generate(prompt, max_new_tokens=task.max_tokens),
        "stop": lambda: generate(prompt, details=True, stop=[task.stop], **ask),
        "seed": lambda: generate(prompt, details=True, do_sample=True, seed=7, **ask),
        "best_of": lambda: generate(prompt, details=True, do_sample=True, best_of=2, **ask),
        "top_n_tokens": lambda: generate(prompt, details=True, top_n_tokens=2, **ask),
        "prefill": lambda: generate(prompt, details=True, decoder_input_details=True, **ask),
        "json": lambda: generate(
            prompt, max_new_tokens=96, return_full_text=False, grammar={"type": "json", "value": task.schema}
        ),
        "regex": lambda: generate(prompt, grammar={"type": "regex", "value": task.regex}, **ask),
        "endpoint_info": endpoint.get_endpoint_info,
        "health_check": endpoint.health_check,
    }


def chat_completion(task: Task) -> Calls:
    client = InferenceClient(task.model, timeout=60)
    chat: Any = client.chat_completion
    messages = [{"role": "user", "content": task.prompt}]
    ask: dict[str, Any] = {"max_tokens": task.max_tokens, "temperature": 0.0}
    schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": task.schema}}
    tool = {"tools": [task.tool], "tool_choice": task.tool_choice, "max_tokens": 96, "temperature": 0.0}
    asynchronous: Any = AsyncInferenceClient(task.model, timeout=60).chat_completion
    return {
        "chat": lambda: chat(messages, **ask),
        "chat_stream": lambda: chat(messages, stream=True, **ask),
        "async_chat": lambda: asynchronous(messages, **ask),
        "async_chat_stream": lambda: asynchronous(messages, stream=True, **ask),
        "chat_usage": lambda: chat(messages, stream=True, stream_options={"include_usage": True}, **ask),
        "chat_logprobs": lambda: chat(messages, logprobs=True, top_logprobs=2, **ask),
        "chat_json": lambda: chat(messages, response_format=schema, max_tokens=96, temperature=0.0),
        "chat_tool": lambda: chat(messages, **tool),
        "chat_tool_stream": lambda: chat(messages, stream=True, **tool),
    }


def errors(task: Task) -> Calls:
    echo: Any = InferenceClient(task.echo, timeout=60).text_generation
    full: Any = InferenceClient(task.full, timeout=60).text_generation
    chat: Any = InferenceClient(task.echo, timeout=60).chat_completion
    full_chat: Any = InferenceClient(task.full, timeout=60).chat_completion
    unfit = {"stop": list("abcde")}  # one more than allowed
    messages = [{"role": "user", "content": "hello"}]
    return {
        "invalid": lambda: echo("hello", **unfit),
        "invalid_stream": lambda: echo("hello", stream=True, **unfit),
        "failed": lambda: echo("hello RAISE@2"),
        "failed_stream": lambda: echo("hello RAISE@2", stream=True),
        "overloaded": lambda: full("hello"),
        "overloaded_stream": lambda: full("hello", stream=True),
        "chat_invalid": lambda: chat(messages, top_p=7.0),
        "chat_failed_stream": lambda: chat([{"role": "user", "content": "RAISE@2"}], stream=True),
        "chat_overloaded": lambda: full_chat(messages),
    }


if __name__ == "__main__":
    main(lambda task: text_generation(task) | chat_completion(task) | errors(task))
