"""Small models with one score per label, with random weights in float32, and checkpoints of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tiny_embedders import CONFIGS, character_tokenizer
from tiny_models import MAX_LEN, TINY, VOCAB_SIZE

BART = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 32,
    **{
        f"{side}_{what}": number
        for side in ("encoder", "decoder")
        for what, number in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))
    },
    "max_position_embeddings": MAX_LEN,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
GEMMA3 = {
    "text_config": TINY | {"head_dim": 8, "pad_token_id": 3},
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    },
}
"""Only the configuration of the texts has the padding token, which is not 0."""
CLASSIFIERS = CONFIGS | {
    "bart": ("BartConfig", BART),
    "gemma3": ("Gemma3Config", GEMMA3),
    "llama_without_padding_token": ("LlamaConfig", TINY | {"pad_token_id": None}),
}


def make_classifier(name: str, labels: int = 1, **options: Any) -> Any:
    """Build a model. Its weights are the same on every call, and large enough for scores that differ."""
    config_class, config = CLASSIFIERS[name]
    built = getattr(transformers, config_class)(**(config | options), num_labels=labels)
    torch.manual_seed(11)
    auto_class: Any = transformers.AutoModelForSequenceClassification
    model = auto_class.from_config(built, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
    return model


def save_classifier(name: str, path: Path, labels: int = 1, **options: Any) -> Path:
    """Write a checkpoint with a tokenizer that has one token per character and tells two texts apart."""
    make_classifier(name, labels, **options).save_pretrained(path)
    character_tokenizer(token_types=name in ("bert", "roberta")).save_pretrained(path)
    return path
