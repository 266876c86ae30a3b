"""LangChain: `HuggingFaceEndpoint`, `ChatHuggingFace`, the older `HuggingFaceTextGenInference`, and `ChatOpenAI`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calls import Calls, Task, main
from langchain_community.llms import HuggingFaceTextGenInference
from langchain_huggingface import ChatHuggingFace, HuggingFaceEndpoint
from langchain_openai import ChatOpenAI

GREEDY: dict[str, Any] = {"top_k": 1}
"""The older class always samples."""


def endpoint(url: str, task: Task, **settings: Any) -> Any:
    return HuggingFaceEndpoint(endpoint_url=url, max_new_tokens=task.max_tokens, timeout=60, **settings)


def text_gen_inference(url: str, task: Task, **settings: Any) -> Any:
    return HuggingFaceTextGenInference(inference_server_url=url, max_new_tokens=task.max_tokens, timeout=60, **settings)


def text_generation(name: str, model: Callable[..., Any], task: Task) -> Calls:
    greedy = model(task.model, task, **GREEDY)
    echo, full = model(task.echo, task, **GREEDY), model(task.full, task, **GREEDY)
    calls: Calls = {
        "invoke": lambda: greedy.invoke(task.prompt),
        "stream": lambda: greedy.stream(task.prompt),
        "ainvoke": lambda: greedy.ainvoke(task.prompt),
        "astream": lambda: greedy.astream(task.prompt),
        "batch": lambda: greedy.batch([task.prompt] * 3),
        "streaming": lambda: model(task.model, task, streaming=True, **GREEDY).invoke(task.prompt),
        "stop": lambda: greedy.invoke(task.prompt, stop=[task.stop]),
        "stop_stream": lambda: greedy.stream(task.prompt, stop=[task.stop]),
        "sampled": lambda: model(task.model, task, seed=7).invoke(task.prompt),
        "invalid": lambda: echo.invoke("hello", stop=list("abcde")),  # one more than allowed
        "failed_stream": lambda: echo.stream("hello RAISE@2"),
        "overloaded": lambda: full.invoke("hello"),
    }
    return {f"{name}.{call}": does for call, does in calls.items()}


def chat_hugging_face(task: Task, max_tokens: int) -> Any:
    return ChatHuggingFace(
        llm=endpoint(task.model, task, temperature=None, top_p=None), temperature=0.0, max_tokens=max_tokens
    )


def chat_openai(task: Task, max_tokens: int) -> Any:
    return ChatOpenAI(
        base_url=f"{task.model}/v1", api_key="none", model="tgi", temperature=0, max_tokens=max_tokens, max_retries=0
    )


def chat(name: str, model: Callable[[Task, int], Any], task: Task) -> Calls:
    short, long = model(task, task.max_tokens), model(task, 96)
    with_tool = long.bind_tools([task.tool], tool_choice=task.tool["function"]["name"])
    structured = long.with_structured_output({"title": "answer", **task.schema}, method="json_schema")
    calls: Calls = {
        "invoke": lambda: short.invoke(task.prompt),
        "stream": lambda: short.stream(task.prompt),
        "ainvoke": lambda: short.ainvoke(task.prompt),
        "astream": lambda: short.astream(task.prompt),
        "tool": lambda: with_tool.invoke(task.prompt),
        "structured": lambda: structured.invoke(task.prompt),
    }
    return {f"{name}.{call}": does for call, does in calls.items()}


def calls(task: Task) -> Calls:
    return (
        text_generation("endpoint", endpoint, task)
        | text_generation("text_gen_inference", text_gen_inference, task)
        | chat("chat_hugging_face", chat_hugging_face, task)
        | chat("chat_openai", chat_openai, task)
    )


if __name__ == "__main__":
    main(calls)
