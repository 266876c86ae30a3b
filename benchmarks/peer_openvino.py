"""Peer: OpenVINO GenAI's continuous batching in this process. `peer_openvino.py GGUF_FILE PRECISION`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import openvino
import openvino_genai
from peer import Answers

PRECISIONS: dict[str, dict[str, str]] = {
    "defaults": {},
    "exact": {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"},
}


def main(gguf_file: str, precision: str) -> None:
    """Answer questions until standard input ends. `precision` is a key of `PRECISIONS`."""
    answers = Answers.on_standard_output()
    scheduler = openvino_genai.SchedulerConfig()
    pipeline: Any = openvino_genai.ContinuousBatchingPipeline(gguf_file, scheduler, "CPU", PRECISIONS[precision])

    def generate(prompts: list[list[int]], new_tokens: int) -> int:
        config: Any = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new_tokens, True, False
        inputs = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        results = pipeline.generate(inputs, [config] * len(inputs))
        return sum(len(result.m_generation_ids[0]) for result in results)

    answers.run(f"OpenVINO {openvino_genai.__version__}, {_describe(PRECISIONS[precision])}", generate)


def _describe(properties: dict[str, str]) -> str:
    """Say what the CPU computes in with these properties."""
    core: Any = openvino.Core()
    core.set_property("CPU", properties)
    floats, cache = (
        core.get_property("CPU", name).get_type_name() for name in ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION")
    )
    group_size = int(core.get_property("CPU", "DYNAMIC_QUANTIZATION_GROUP_SIZE"))
    integers = f"int8 in groups of {group_size} and " if group_size else ""
    return f"{integers}{floats}, KV cache {cache}"


if __name__ == "__main__":
    main(*sys.argv[1:])
