"""Writes GGUF files with weights of several types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf_files import merges_within

Q = gguf.GGMLQuantizationType


def write_mixed_gguf(
    source: Path,
    target: Path,
    num_layers: int,
    type_of: Callable[[str], Any],
    *,
    vocab_size: int = 1 << 30,
    changed_matrix: Callable[[Any], Any] = lambda matrix: matrix,
) -> None:
    """Copy the first layers of `source`, a Llama model, with matrices of the types that `type_of` returns for their names.

    Of the vocabulary, the first tokens are copied. Matrices of K types, which `gguf` cannot write, get random weights. In
    one of them some groups have a scale of 0.
    """
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()[:vocab_size]
    changed = {
        "llama.block_count": min(num_layers, int(reader.fields["llama.block_count"].contents())),
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": reader.fields["tokenizer.ggml.token_type"].contents()[:vocab_size],
        "tokenizer.ggml.merges": merges_within(tokens, reader.fields["tokenizer.ggml.merges"].contents()),
    }
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            value = changed[field.name] if field.name in changed else field.contents()
            sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, value, field.types[0], sub_type=sub_type)
    random = np.random.default_rng(0)
    for tensor in reader.tensors:
        layer = tensor.name.removeprefix("blk.").partition(".")[0]
        if layer.isdecimal() and int(layer) >= num_layers:
            continue
        data = tensor.data[:vocab_size] if tensor.name == "token_embd.weight" else tensor.data
        weights = gguf.dequantize(data, tensor.tensor_type)
        kind = Q.F32 if weights.ndim == 1 else type_of(tensor.name)
        is_k = kind in (Q.Q4_K, Q.Q6_K)
        weights = weights if weights.ndim == 1 else changed_matrix(weights)
        data = _random_k_blocks(random, kind, weights.shape) if is_k else gguf.quantize(weights, kind)
        writer.add_tensor(tensor.name, data, raw_dtype=None if kind in (Q.F32, Q.F16) else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _random_k_blocks(random: np.random.Generator, kind: Any, shape: tuple[int, ...]) -> Any:
    block_size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (shape[0], shape[1] // block_size, num_bytes), dtype=np.uint8)
    factors = random.uniform(1e-6, 1e-4, (*blocks.shape[:2], 2)).astype(np.float16)
    factors[:5, 0, 0] = 0  # the scale of a few blocks
    factors = factors.view(np.uint8)
    if kind == Q.Q4_K:
        blocks[..., :4] = factors
    else:
        blocks[..., -2:] = factors[..., :2]
    return blocks.reshape(shape[0], -1)
