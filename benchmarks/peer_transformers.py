"""The peers of the rolling-batch benchmark: both generation methods of transformers, with the same weights and prompts.

`peer_transformers.py MODEL_FOLDER DRIVER NEW_TOKENS` loads the model in bfloat16 and then prints one line of JSON.
After that, each line on standard input is a list of prompts, each a list of token ids. The answer to each line is
`{"seconds": .., "tokens": ..}`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers

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


DRIVERS: dict[str, Callable[[Any, list[list[int]], int], int]] = {
    "generate": generate,
    "generate_batch": generate_batch,
}


def main(model_folder: str, driver: str, new_tokens: str) -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # transformers also prints to standard output
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16)
    model.eval()
    print(json.dumps({"threads": torch.get_num_threads(), "torch": torch.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        prompts = json.loads(line)
        started = time.perf_counter()
        tokens = DRIVERS[driver](model, prompts, int(new_tokens))
        print(json.dumps({"seconds": time.perf_counter() - started, "tokens": tokens}), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
