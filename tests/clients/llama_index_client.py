"""llama-index's `SageMakerLLM`. Its package imports llama.cpp's for two prompt templates: that is replaced by nothing."""

from __future__ import annotations

import json
import sys
import types

from calls import Calls, Task, main

llama_cpp = types.ModuleType("llama_cpp")
llama_cpp.Llama = llama_cpp.llama_cpp = object  # type: ignore[attr-defined]
sys.modules["llama_cpp"] = llama_cpp

from llama_index.llms.sagemaker_endpoint import SageMakerLLM  # noqa: E402
from llama_index.llms.sagemaker_endpoint.utils import IOHandler  # noqa: E402


class Records(IOHandler):  # type: ignore[misc]  # not installed here
    """Reads the records of a stream. The package's own handler expects a single document in pieces."""

    def deserialize_streaming_output(self, response: bytes) -> str:
        record = response.decode().removeprefix("data:").strip()
        return json.loads(record)["token"]["text"] if record else ""

    def remove_prefix(self, response: str, prompt: str) -> str:
        return response


def calls(task: Task) -> Calls:
    # It cuts the prompt off the answer, which is to begin with it.
    settings = {"endpoint_name": "mine", "region_name": "us-east-1", "model_kwargs": {"return_full_text": True}}
    llm = SageMakerLLM(**settings)
    streaming = SageMakerLLM(content_handler=Records(), **settings)
    return {
        "complete": lambda: llm.complete(task.prompt, formatted=True).text,
        "stream": lambda: [part.delta for part in streaming.stream_complete(task.prompt, formatted=True)],
    }


if __name__ == "__main__":
    main(calls)
