"""The SageMaker SDK, version 3 (`sagemaker.core`), and OpenAI's client with the token that it makes."""

from __future__ import annotations

import json
from datetime import timedelta

from calls import Calls, Task, main
from openai import OpenAI
from sagemaker.core.resources import Endpoint
from sagemaker.core.token_generator import generate_token


def calls(task: Task) -> Calls:
    endpoint = Endpoint(endpoint_name="mine")
    body = json.dumps({"inputs": task.prompt, "parameters": {"max_new_tokens": 64}})
    chat = {"messages": [{"role": "user", "content": task.prompt}]}

    def openai(path: str, lifetime: timedelta = timedelta(hours=12)) -> OpenAI:
        token = generate_token(region="us-east-1", expiry=lifetime)
        return OpenAI(base_url=f"{task.model}/endpoints/mine{path}/openai/v1", api_key=token, max_retries=0)

    return {
        "invoke": lambda: json.loads(
            endpoint.invoke(body=body, content_type="application/json", region="us-east-1").body.read()
        ),
        "chat": lambda: openai("").chat.completions.create(model="mine", **chat),
        "stream": lambda: openai("/inference-components/one").chat.completions.create(model="", stream=True, **chat),
    }


if __name__ == "__main__":
    main(calls)
