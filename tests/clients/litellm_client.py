"""LiteLLM: `huggingface/`, `openai/`, and both of its providers for SageMaker endpoints."""

from __future__ import annotations

from typing import Any

import litellm
from calls import Calls, Task, main

litellm.suppress_debug_info = True
# The `sagemaker/` provider sends a single text. This template makes it the message itself.
litellm.register_prompt_template(model="tgi", roles={"user": {"pre_message": "", "post_message": ""}})


def provider(name: str, task: Task, model: str, **settings: Any) -> Calls:
    ask: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": task.prompt}],
        "max_tokens": task.max_tokens,
        "max_retries": 0,
        **settings,
    }
    return {
        f"{name}.completion": lambda: litellm.completion(**ask),
        f"{name}.stream": lambda: litellm.completion(stream=True, **ask),
        f"{name}.acompletion": lambda: litellm.acompletion(**ask),
        f"{name}.astream": lambda: litellm.acompletion(stream=True, **ask),
    }


def sagemaker(name: str, task: Task, model: str, **settings: Any) -> Calls:
    """SageMaker has different URLs for answers and for streams."""
    whole = f"{task.model}/endpoints/tgi/invocations"
    calls = provider(name, task, model, sagemaker_base_url=whole, aws_region_name="us-east-1", **settings)
    streamed = provider(
        name, task, model, sagemaker_base_url=f"{whole}-response-stream", aws_region_name="us-east-1", **settings
    )
    return {call: (streamed if call.endswith("stream") else calls)[call] for call in calls}


def errors(task: Task) -> Calls:
    messages = [{"role": "user", "content": "hello"}]

    def complete(url: str, **asked: Any) -> object:
        return litellm.completion(
            **{"model": "huggingface/tgi", "api_base": url, "messages": messages, "max_retries": 0, **asked}
        )

    return {
        "invalid": lambda: complete(task.echo, top_p=7.0),
        "overloaded": lambda: complete(task.full),
        "failed": lambda: complete(task.echo, messages=[{"role": "user", "content": "RAISE@2"}]),
    }


def calls(task: Task) -> Calls:
    openai = {"api_base": f"{task.model}/v1", "api_key": "none"}
    return (
        provider("huggingface", task, "huggingface/tgi", api_base=task.model, temperature=0.0)
        | provider("openai", task, "openai/tgi", temperature=0.0, **openai)
        | sagemaker("sagemaker", task, "sagemaker/tgi", return_full_text=False)
        | sagemaker("sagemaker_chat", task, "sagemaker_chat/tgi", temperature=0.0)
        | errors(task)
    )


if __name__ == "__main__":
    main(calls)
