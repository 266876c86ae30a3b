"""boto3, openai, huggingface_hub and requests, which all stream at once: `python streaming_clients.py URL PROMPT`.

Prints `streaming` when each has received something, and at the end what each has received and raised:

    {"openai chat": {"text": "Hello", "raised": ""}}
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
import requests
from huggingface_hub import InferenceClient
from openai import OpenAI

TOKENS = 2000


def boto3_response_stream(url: str, prompt: str) -> Iterator[str]:
    client = boto3.client("sagemaker-runtime", endpoint_url=url, region_name="us-east-1")
    body = json.dumps({"inputs": prompt, "parameters": {"max_new_tokens": TOKENS}})
    answer = client.invoke_endpoint_with_response_stream(EndpointName="mine", ContentType="application/json", Body=body)
    for event in answer["Body"]:
        yield event["PayloadPart"]["Bytes"].decode()


def openai_chat(url: str, prompt: str) -> Iterator[str]:
    messages: Any = [{"role": "user", "content": prompt}]
    chat = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0).chat.completions
    for chunk in chat.create(model="m", messages=messages, max_tokens=TOKENS, stream=True):
        yield chunk.choices[0].delta.content or ""


def openai_completion(url: str, prompt: str) -> Iterator[str]:
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    for chunk in client.completions.create(model="m", prompt=prompt, max_tokens=TOKENS, stream=True):
        yield chunk.choices[0].text


def openai_responses(url: str, prompt: str) -> Iterator[str]:
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    for event in client.responses.create(model="m", input=prompt, max_output_tokens=TOKENS, stream=True):
        if event.type == "response.output_text.delta":
            yield event.delta


def hub_text_generation(url: str, prompt: str) -> Iterator[str]:
    yield from InferenceClient(url, timeout=60).text_generation(prompt, max_new_tokens=TOKENS, stream=True)


def hub_chat(url: str, prompt: str) -> Iterator[str]:
    messages = [{"role": "user", "content": prompt}]
    for chunk in InferenceClient(url, timeout=60).chat_completion(messages, max_tokens=TOKENS, stream=True):
        yield chunk.choices[0].delta.content or ""


def requests_json_lines(url: str, prompt: str) -> Iterator[str]:
    body = {"inputs": prompt, "parameters": {"max_new_tokens": TOKENS}, "stream": True}
    with requests.post(f"{url}/invocations", json=body, stream=True, timeout=60) as answer:
        for line in answer.iter_lines():
            yield line.decode()


CLIENTS: list[Callable[[str, str], Iterator[str]]] = [
    boto3_response_stream,
    openai_chat,
    openai_completion,
    openai_responses,
    hub_text_generation,
    hub_chat,
    requests_json_lines,
]


def main(url: str, prompt: str) -> None:
    begun = threading.Barrier(len(CLIENTS), action=lambda: print("streaming", flush=True), timeout=240)

    def outcome(client: Callable[[str, str], Iterator[str]]) -> dict[str, str]:
        text, raised = "", ""
        try:
            for number, piece in enumerate(client(url, prompt)):
                text += piece
                if number == 0:
                    begun.wait()
        except Exception as error:  # noqa: BLE001  whatever a client raises
            raised = f"{type(error).__module__}.{type(error).__name__}: {error}"
        return {"text": text, "raised": raised}

    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        outcomes = dict(zip((each.__name__ for each in CLIENTS), pool.map(outcome, CLIENTS), strict=True))
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
