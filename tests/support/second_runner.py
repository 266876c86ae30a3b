"""Runs requests on vLLM's second model runner, as a program that prints their results as JSON.

Triton's interpreter runs the kernels on the CPU, at a few seconds per step for a vocabulary of 50,000.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from serving_properties import serving_properties

from backends.base import ModelFiles
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.request import EncodedPrompt, TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.core.thinking import ThinkingMarks

PROMPT = [1, 2, 3]
THINKING = ThinkingMarks(begins=((3,),), ends=((4,),), forced_end=(5, 6))
OPTIONS: dict[str, Any] = {
    "dtype": "fp32",
    "enforce_eager": True,
    "max_model_len": 128,
    "max_rolling_batch_size": 16,
    "extra": {"kv_cache_memory_bytes": "64M"},
}


def main(path: Path, requests: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """`requests` maps request ids to sampling parameters."""
    from backends.lmi_dist.backend import LmiDistBackend
    from backends.vllm.backend import VLLMBackend

    for backend_class in VLLMBackend, LmiDistBackend:  # without a model
        backend_class.check_options(serving_properties())
    vocab_size = json.loads((path / "config.json").read_text())["vocab_size"]
    files = ModelFiles(path=path, eos_token_ids=(2,), vocab_size=vocab_size, thinking=THINKING)
    backend = VLLMBackend.load(files, serving_properties(**OPTIONS), lambda phase: None)
    token_ids: dict[str, list[int]] = {}
    refused = {}
    for request_id, params in requests.items():
        if "logit_bias" in params:  # JSON has turned the keys into strings
            params["logit_bias"] = {int(token): bias for token, bias in params["logit_bias"].items()}
        try:
            backend.add_request(
                TokenRequest(
                    request_id=request_id,
                    prompt=EncodedPrompt(PROMPT),
                    sampling_params=SamplingParams(**{"max_tokens": 2, "ignore_eos": True} | params),
                )
            )
        except InvalidRequest as error:
            refused[request_id] = str(error)
        else:
            token_ids[request_id] = []
    running = set(token_ids)
    while running:
        for output in backend.step():
            token_ids[output.request_id] += output.token_ids
            if output.finish_reason is not None:
                running.discard(output.request_id)
    backend.close()
    return {
        "second_runner": backend._engine.vllm_config.use_v2_model_runner,
        "unsupported": backend.capabilities.unsupported,
        "token_ids": token_ids,
        "refused": refused,
    }


def interpret_triton() -> None:
    """Must be called before vLLM is imported. Its CPU build uses Triton if Triton has a backend with this name."""
    os.environ["TRITON_INTERPRET"] = "1"
    backends = importlib.import_module("triton.backends").backends
    backends["cpu"] = SimpleNamespace(compiler=None, driver=SimpleNamespace(is_active=lambda: True))


if __name__ == "__main__":
    interpret_triton()
    print(json.dumps(main(Path(sys.argv[1]), json.load(sys.stdin))))
