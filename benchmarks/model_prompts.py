"""The default model, and prompts that have an exact number of its tokens."""

from __future__ import annotations

import os
import random
from pathlib import Path

import tokenizers

from lmi_handlers.model_files.cache_dir import default_cache_dir
from lmi_handlers.model_files.locate import locate_model
from lmi_handlers.model_files.resolve import resolve_model

WORDS = ("time", "people", "way", "water", "day", "part", "place", "work", "life", "world", "house", "river", "night")

Prompt = tuple[str, list[int]]


def default_gguf() -> Path:
    """Return the default model's GGUF file."""
    path = locate_model(None, model_dir=None, revision=None, cache_dir=default_cache_dir(os.environ))
    assert path is not None
    return path


def default_model() -> Path:
    """Return the folder with the default model as safetensors, in bfloat16. Converts it if necessary."""
    return resolve_model(
        None, model_dir=None, revision=None, cache_dir=default_cache_dir(os.environ), report=lambda _: None
    )


def make_prompts(model: Path, count: int, tokens: int, seed: object = 0) -> list[Prompt]:
    """Return different prompts of `tokens` tokens each, as text and as token ids: always the same ones for a `seed`."""
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    words = random.Random(str(seed))
    prompts: list[Prompt] = []
    for _ in range(count):
        text = "".join(f" {word}" for word in words.choices(WORDS, k=tokens))
        token_ids = tokenizer.encode(text).ids
        if len(token_ids) != tokens:
            raise RuntimeError(f"the prompt has {len(token_ids)} tokens, not {tokens}")
        prompts.append((text, token_ids))
    return prompts
