"""A model with a file of each kind that is checked for being whole."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import jinja2

RANKS = "".join(f"{base64.b64encode(bytes([rank] * 3)).decode()} {rank}\n" for rank in range(120)).encode()
TEMPLATE = "{%- for message in messages %}{{ '<|é' + message.content }}{# text #}{% endfor %}"


def field(number: int, content: bytes) -> bytes:
    """Return a field of a protocol buffer that has up to 127 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


PIECES = b"".join(field(1, field(1, f"piece {number}".encode())) for number in range(40))
SENTENCEPIECE = PIECES + field(2, b"\x18\x02") + field(3, field(1, b"identity"))


def checkpoint(folder: Path) -> Path:
    """Write a model with an adapter to `folder`, with one file of each kind and nothing that could be served."""
    import torch  # not where a test only needs the names
    from lora import write_adapter
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    weights = {"a": torch.zeros(4, 5), "b": torch.ones(7, dtype=torch.bfloat16)}
    save_file(weights, folder / "model.safetensors")
    torch.save(weights, folder / "pytorch_model.bin")
    torch.save(weights, folder / "pytorch_model-old.bin", _use_new_zipfile_serialization=False)
    index = {"weight_map": {"a": "model.safetensors", "b": "model.safetensors"}}
    for name, content in {
        "config.json": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
        "generation_config.json": {"temperature": 1.0},
        "model.safetensors.index.json": index,
        "pytorch_model.bin.index.json": index,
        "tokenizer.json": {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}},
        "tokenizer_config.json": {"eos_token": "</s>"},
        "tekken.json": {"config": {"pattern": "."}, "vocab": []},
        "vocab.json": {"a": 0},
        "added_tokens.json": {"</s>": 1},
        "special_tokens_map.json": {"eos_token": "</s>"},
        "preprocessor_config.json": {"size": 224},
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    for name, data in {
        "tokenizer.model": SENTENCEPIECE,
        "tokenizer.model.v3": SENTENCEPIECE,
        "qwen.tiktoken": RANKS,
        "vocab.txt": "a\né\n한국\n".encode(),
        "merges.txt": "#version: 0.2\né é".encode(),
        "chat_template.jinja": TEMPLATE.encode(),
    }.items():
        (folder / name).write_bytes(data)
    write_adapter(folder / "adapters" / "mine", 0.0, layers=2, width=32)
    for name in ("adapter_model.bin", "adapter_model.pt"):
        torch.save(weights, folder / "adapters" / "mine" / name)
    return folder


def _is_text(data: bytes) -> bool:
    try:
        return data.decode() != ""
    except UnicodeDecodeError:
        return False


def _is_template(data: bytes) -> bool:
    try:
        return _is_text(data) and jinja2.Environment().parse(data.decode()) is not None
    except jinja2.TemplateSyntaxError:
        return False


def _are_ranks(data: bytes) -> bool:
    lines = data.splitlines()
    return lines != [] and lines == RANKS.splitlines()[: len(lines)]


FILES = (
    *("model.safetensors", "pytorch_model.bin", "pytorch_model-old.bin"),
    *("config.json", "generation_config.json", "preprocessor_config.json", "1_Pooling/config.json"),
    *("model.safetensors.index.json", "pytorch_model.bin.index.json"),
    *("tokenizer.json", "tokenizer_config.json", "tekken.json", "vocab.json", "added_tokens.json"),
    *("special_tokens_map.json", "tokenizer.model", "tokenizer.model.v3"),
    *("qwen.tiktoken", "vocab.txt", "merges.txt", "chat_template.jinja"),
    *(
        "adapters/mine/adapter_model.safetensors",
        "adapters/mine/adapter_model.bin",
        "adapters/mine/adapter_model.pt",
        "adapters/mine/adapter_config.json",
    ),
)
_MAY_BE = {
    "qwen.tiktoken": _are_ranks,
    "vocab.txt": _is_text,
    "merges.txt": _is_text,
    "chat_template.jinja": _is_template,
}
"""Formats of which a beginning may be complete -> whether this one is. No other format has such beginnings."""


def is_complete(name: str, data: bytes) -> bool:
    """Tell whether a beginning of one of `FILES` is complete by its own format's rules."""
    return name in _MAY_BE and _MAY_BE[name](data)
