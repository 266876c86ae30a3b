"""Small models that embed texts, with random weights in float32, and checkpoints of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tiny_models import MAX_LEN, TINY, VOCAB_SIZE
from tokenizers import Tokenizer, models, pre_tokenizers, processors

ENCODER = {
    **{name: TINY[name] for name in ("vocab_size", "hidden_size", "intermediate_size", "initializer_range")},
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": MAX_LEN,
    "pad_token_id": 0,
}
T5 = {"vocab_size": VOCAB_SIZE, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", ENCODER),
    "roberta": ("RobertaConfig", ENCODER | {"pad_token_id": 1, "max_position_embeddings": MAX_LEN + 2}),
    "distilbert": ("DistilBertConfig", {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "vocab_size": 128}),
    "modernbert": ("ModernBertConfig", ENCODER | {"local_attention": 8, "global_attn_every_n_layers": 2}),
    "t5": ("T5Config", T5),
    "llama": ("LlamaConfig", TINY),
    "qwen3": ("Qwen3Config", TINY),
    "mistral_sliding_window": ("MistralConfig", TINY | {"sliding_window": 5}),
}


def make_embedder(name: str, **options: Any) -> Any:
    """Build a model. Its weights are the same on every call. `options` replace those of its configuration."""
    config_class, usual = CONFIGS[name]
    config = getattr(transformers, config_class)(**(usual | options))
    auto_class: Any = transformers.AutoModelForTextEncoding if name == "t5" else transformers.AutoModel
    torch.manual_seed(7)
    return auto_class.from_config(config, dtype=torch.float32).eval()


def save_embedder(name: str, path: Path, *, modules: dict[str, Any] | None = None, **options: Any) -> Path:
    """Write a checkpoint with a tokenizer that has one token per character.

    `modules` are sentence-transformers' modules after the model: name of the class -> its configuration. `options` are
    the model's.
    """
    make_embedder(name, **options).save_pretrained(path)
    character_tokenizer().save_pretrained(path)
    if modules is not None:
        kinds = ["Transformer", *modules]
        folders = ["", *(f"{place}_{kind}" for place, kind in enumerate(modules, 1))]
        (path / "modules.json").write_text(
            json.dumps(
                [
                    {"idx": i, "name": str(i), "path": folder, "type": f"sentence_transformers.models.{kind}"}
                    for i, (folder, kind) in enumerate(zip(folders, kinds, strict=True))
                ]
            )
        )
        for folder, config in zip(folders[1:], modules.values(), strict=True):
            (path / folder).mkdir()
            (path / folder / "config.json").write_text(json.dumps(config))
    return path


def save_sparse_embedder(path: Path) -> Path:
    """Write a checkpoint of a masked language model whose logits are pooled (SPLADE)."""
    save_embedder("bert", path, modules={"SpladePooling": {}})
    listed = json.loads((path / "modules.json").read_text())
    listed[0]["type"] = "sentence_transformers.sparse_encoder.models.MLMTransformer"
    (path / "modules.json").write_text(json.dumps(listed))
    torch.manual_seed(7)
    config = transformers.BertConfig(**ENCODER)
    masked: Any = transformers.AutoModelForMaskedLM
    masked.from_config(config).save_pretrained(path)
    return path


def character_tokenizer(*, token_types: bool = False) -> Any:
    """A tokenizer with one token per character. With `token_types`, the model wants to know the text of each token."""
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    characters = [chr(code) for code in range(32, 126)]
    tokenizer = Tokenizer(
        models.WordLevel({text: i for i, text in enumerate([*special, *characters])}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    fast: Any = transformers.PreTrainedTokenizerFast
    inputs = ["input_ids", *(["token_type_ids"] if token_types else []), "attention_mask"]
    return fast(tokenizer_object=tokenizer, model_max_length=MAX_LEN, model_input_names=inputs, **names)
