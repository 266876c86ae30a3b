"""The peers of the rolling batch: transformers' own two ways to generate, on the same weights, prompts and lengths.

`peer_transformers.py MODEL_FOLDER DRIVER NEW_TOKENS` loads the model in bfloat16 and says so in a line of JSON. Each line on
standard input is then a list of prompts, each a list of token ids; each is answered by `{"seconds": .., "tokens": ..}`.
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
"""As the id that ends a sequence: none does, so that all are of the same length."""


def generate(model: Any, prompts: list[list[int]], new_tokens: int) -> int:
    """`model.generate` on all prompts, which are of one length, as a static batch; returns how many tokens it made."""
    input_ids = torch.tensor(prompts)
    config = generation_config(new_tokens)
    with torch.inference_mode():
        output = model.generate(input_ids, attention_mask=torch.ones_like(input_ids), generation_config=config)
    return int(output[:, input_ids.shape[1] :].numel())


def generate_batch(model: Any, prompts: list[list[int]], new_tokens: int) -> int:
    """`model.generate_batch`, which is transformers' continuous batching; returns how many tokens it made.

    Its cache is given room for what comes here, as its default is nearly all memory there is, which takes long to clear.
    """
    outputs = model.generate_batch(
        inputs=prompts,
        generation_config=generation_config(new_tokens),
        continuous_batching_config=transformers.ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=2048),
    )
    return sum(len(output.generated_tokens) for output in outputs.values())


def generation_config(new_tokens: int) -> Any:
    """Greedy, for exactly so many tokens."""
    config: Any = transformers.GenerationConfig  # whose constructor has no types
    return config(max_new_tokens=new_tokens, do_sample=False, eos_token_id=NO_TOKEN, pad_token_id=0)


DRIVERS: dict[str, Callable[[Any, list[list[int]], int], int]] = {
    "generate": generate,
    "generate_batch": generate_batch,
}


def main(model_folder: str, driver: str, new_tokens: str) -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the library prints, too
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
