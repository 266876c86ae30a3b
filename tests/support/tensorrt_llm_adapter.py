"""The TensorRT-LLM adapter on a stand-in that follows the engine's published interface.

The stand-in's model repeats the prompt and then ends. Sampled tokens are shifted by the seed.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from serving_properties import serving_properties
from standin import standin

from backends.base import ModelFiles
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.request import EncodedPrompt, TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams

with standin("tensorrt_llm"):
    from tensorrt_llm.contract import CONTRACT
    from tensorrt_llm.controls import controls
    from tensorrt_llm.executor.worker import context_logits, logprob
    from tensorrt_llm.llmapi import GuidedDecodingParams
    from tensorrt_llm.lora_helper import TARGET_MODULES

    from backends.tensorrt_llm.backend import TensorRTLLMBackend
    from backends.tensorrt_llm.sampling import engine_sampling_params

__all__ = [
    "CONTRACT",
    "EOS",
    "MAX_MODEL_LEN",
    "OTHER_EOS",
    "PROMPT",
    "TARGET_MODULES",
    "VOCAB_SIZE",
    "GuidedDecodingParams",
    "Load",
    "TensorRTLLMBackend",
    "context_logits",
    "controls",
    "engine",
    "engine_sampling_params",
    "finished",
    "loading",
    "logprob",
    "request",
    "run",
    "steps",
    "submitted",
    "token_ids",
    "write_adapter",
    "write_adapters",
    "write_model",
]

VOCAB_SIZE = 64
MAX_MODEL_LEN = 48
EOS, OTHER_EOS = 2, 3
PROMPT = [10, 11, 12, 13, 14, 15]

Load = Callable[..., TensorRTLLMBackend]


@contextlib.contextmanager
def loading(directory: Path) -> Iterator[Load]:
    """Write a model to `directory` and load backends from it: `load(adapters=, **options)`. Closes them at the end."""
    backends: list[TensorRTLLMBackend] = []
    model = write_model(directory)

    def load(adapters: dict[str, Path] | None = None, **options: Any) -> TensorRTLLMBackend:
        options.setdefault("tensor_parallel_degree", 1)
        files = msgspec.structs.replace(model, adapters=adapters or {})
        backend = TensorRTLLMBackend.load(files, serving_properties(**options), lambda phase: None)
        backends.append(backend)
        return backend

    yield load
    for backend in backends:
        backend.close()


def write_model(directory: Path) -> ModelFiles:
    config = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": MAX_MODEL_LEN}
    (directory / "config.json").write_text(json.dumps(config))
    return ModelFiles(path=directory, eos_token_ids=(EOS, OTHER_EOS), vocab_size=VOCAB_SIZE)


def write_adapters(directory: Path) -> dict[str, Path]:
    return {
        name: write_adapter(directory / name, targets)
        for name, targets in {"one": ["q_proj", "v_proj"], "two": ["o_proj", "q_proj"]}.items()
    }


def write_adapter(folder: Path, target_modules: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"r": 8, "target_modules": target_modules}))
    return folder


def engine(backend: TensorRTLLMBackend) -> Any:
    return backend._llm


def submitted(backend: TensorRTLLMBackend) -> Any:
    """Return what the engine was given last."""
    return engine(backend).submitted[-1]


def request(prompt: list[int], request_id: str = "r", adapter: str | None = None, **params: Any) -> TokenRequest:
    params.setdefault("temperature", 0.0)
    sampling_params = SamplingParams(**params)
    return TokenRequest(request_id=request_id, prompt=EncodedPrompt(prompt, adapter), sampling_params=sampling_params)


def steps(backend: TensorRTLLMBackend, until: Callable[[list[TokenOutput]], bool]) -> list[TokenOutput]:
    """Step until `until` holds of all outputs so far."""
    outputs: list[TokenOutput] = []
    deadline = time.monotonic() + 60
    while not until(outputs):
        assert time.monotonic() < deadline, outputs
        outputs += backend.step()
    return outputs


def finished(count: int) -> Callable[[list[TokenOutput]], bool]:
    return lambda outputs: sum(output.finish_reason is not None for output in outputs) >= count


def run(backend: TensorRTLLMBackend, prompt: list[int], **params: Any) -> list[TokenOutput]:
    backend.add_request(request(prompt, **params))
    outputs = steps(backend, finished(1))
    assert [output.finish_reason is not None for output in outputs] == [False] * (len(outputs) - 1) + [True]
    return outputs


def token_ids(outputs: list[TokenOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]
