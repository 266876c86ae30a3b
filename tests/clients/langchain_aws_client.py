"""langchain-aws: `SagemakerEndpoint` and `ChatSagemakerEndpoint`, plain and streamed."""

from __future__ import annotations

import json
from typing import Any

import boto3
from calls import Calls, Task, main
from langchain_aws.chat_models.sagemaker_endpoint import ChatModelContentHandler, ChatSagemakerEndpoint
from langchain_aws.llms.sagemaker_endpoint import LLMContentHandler, SagemakerEndpoint
from langchain_core.messages import AIMessage, AIMessageChunk


class Text(LLMContentHandler):  # type: ignore[misc]  # not installed here
    """LMI's and TGI's format."""

    content_type = accepts = "application/json"

    def transform_input(self, prompt: str, model_kwargs: dict[str, Any]) -> bytes:
        return json.dumps({"inputs": prompt, "parameters": model_kwargs}).encode()

    def transform_output(self, output: Any) -> str:
        if isinstance(output, bytes):  # a record of a stream
            record = output.decode().removeprefix("data:").strip()
            return json.loads(record)["token"]["text"] if record else ""
        text: str = json.loads(output.read())[0]["generated_text"]
        return text


class Chat(ChatModelContentHandler):  # type: ignore[misc]
    """OpenAI's format."""

    content_type = accepts = "application/json"

    def transform_input(self, prompt: Any, model_kwargs: dict[str, Any]) -> bytes:
        return json.dumps({"messages": prompt, **model_kwargs}).encode()

    def transform_output(self, output: Any) -> Any:
        if isinstance(output, bytes):
            record = output.decode().removeprefix("data:").strip()
            if not record or record == "[DONE]":
                return AIMessageChunk(content="")
            choices = json.loads(record)["choices"]
            return AIMessageChunk(content="".join(choice["delta"].get("content") or "" for choice in choices))
        return AIMessage(content=json.loads(output.read())["choices"][0]["message"]["content"])


def calls(task: Task) -> Calls:
    client = boto3.client("sagemaker-runtime", endpoint_url=task.model, region_name="us-east-1")
    settings = {"endpoint_name": "mine", "client": client}
    text = {"content_handler": Text(), "model_kwargs": {"max_new_tokens": 64}}
    chat = {"content_handler": Chat(), "model_kwargs": {"max_tokens": 64}}
    return {
        "text": lambda: SagemakerEndpoint(**settings, **text).invoke(task.prompt),
        "text_stream": lambda: list(SagemakerEndpoint(**settings, streaming=True, **text).stream(task.prompt)),
        "chat": lambda: ChatSagemakerEndpoint(**settings, **chat).invoke(task.prompt).content,
        "chat_stream": lambda: [
            chunk.content
            for chunk in ChatSagemakerEndpoint(
                **settings, streaming=True, **chat | {"model_kwargs": {"max_tokens": 64, "stream": True}}
            ).stream(task.prompt)
        ],
    }


if __name__ == "__main__":
    main(calls)
