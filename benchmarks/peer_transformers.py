"""Peers: both generation methods of transformers, in the faster of float32 and bfloat16.

`peer_transformers.py MODEL_FOLDER METHOD`, where METHOD is `generate` or `generate_batch`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from peer import Answers

NO_TOKEN = -1
"""Used as the end-of-sequence id. No token has this id, so all sequences have the same length."""


def generate(model: Any, prompts: list[list[int]], new_tokens: int) -> int:
    """Run `model.generate` on all prompts as a static batch and return the number of generated tokens.

    All prompts must have the same length.
    """
    input_ids = torch.tensor(prompts)
    config = generation_config(new_tokens)
    with torch.inference_mode():
        output = model.generate(input_ids, attention_mask=torch.ones_like(input_ids), generation_config=config)
    return int(output[:, input_ids.shape[1] :].numel())


def generate_batch(model: Any, prompts: list[list[int]], new_tokens: int) -> int:
    """Run `model.generate_batch`, transformers' continuous batching, and return the number of generated tokens.

    The cache is limited to the size needed here. By default it takes nearly all memory, which is slow to clear.
    """
    outputs = model.generate_batch(
        inputs=prompts,
        generation_config=generation_config(new_tokens),
        continuous_batching_config=transformers.ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=2048),
    )
    return sum(len(output.generated_tokens) for output in outputs.values())


def generation_config(new_tokens: int) -> Any:
    """Return a config for greedy decoding of exactly `new_tokens` tokens."""
    config: Any = transformers.GenerationConfig  # its constructor has no type hints
    return config(max_new_tokens=new_tokens, do_sample=False, eos_token_id=NO_TOKEN, pad_token_id=0)


METHODS: dict[str, Callable[[Any, list[list[int]], int], int]] = {
    "generate": generate,
    "generate_batch": generate_batch,
}


def in_fastest_dtype(model: Any) -> Any:
    """Return the model in the dtype that is faster here: some processors only emulate bfloat16."""
    seconds: dict[torch.dtype, float] = {}
    for dtype in (torch.bfloat16, torch.float32):
        model = model.to(dtype)
        generate(model, [[1] * 64] * 4, 1)  # warm up
        started = time.perf_counter()
        generate(model, [[1] * 64] * 4, 8)
        seconds[dtype] = time.perf_counter() - started
    return model.to(min(seconds, key=lambda dtype: seconds[dtype]))


def main(model_folder: str, method: str) -> None:
    """Answer questions until standard input ends."""
    answers = Answers.on_standard_output()
    load: Any = transformers.AutoModelForCausalLM
    model = in_fastest_dtype(load.from_pretrained(model_folder, dtype=torch.bfloat16).eval())
    hello = f"{str(model.dtype).removeprefix('torch.')}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    answers.run(hello, lambda prompts, new_tokens: METHODS[method](model, prompts, new_tokens))


if __name__ == "__main__":
    main(*sys.argv[1:])
