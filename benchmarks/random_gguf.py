"""GGUF files with random weights in the shapes of larger models: how fast an engine is does not depend on their values.

The default model, which has 135 million weights, flatters an engine that does little besides multiplying matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

TYPES = {"int4": gguf.GGMLQuantizationType.Q4_1, "int8": gguf.GGMLQuantizationType.Q8_0}
"""Types of the matrices. The embedding, which is the vocabulary projection as well, has 8 bits in both."""

CONTEXT_LENGTH = 2048


@dataclass(frozen=True)
class Shape:
    """The sizes of a model whose embedding is its vocabulary projection as well."""

    name: str
    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary: int
    rope_base: float

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all tensors by their names in a GGUF file."""
        keys = self.hidden // self.heads * self.kv_heads
        shapes: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (self.vocabulary, self.hidden),
            "output_norm.weight": (self.hidden,),
        }
        for layer in range(self.layers):
            of_layer: dict[str, tuple[int, ...]] = {
                "attn_norm.weight": (self.hidden,),
                "attn_q.weight": (self.hidden, self.hidden),
                "attn_k.weight": (keys, self.hidden),
                "attn_v.weight": (keys, self.hidden),
                "attn_output.weight": (self.hidden, self.hidden),
                "ffn_norm.weight": (self.hidden,),
                "ffn_gate.weight": (self.feed_forward, self.hidden),
                "ffn_up.weight": (self.feed_forward, self.hidden),
                "ffn_down.weight": (self.hidden, self.feed_forward),
            }
            if self.architecture == "qwen2":
                of_layer |= {"attn_q.bias": (self.hidden,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
            shapes |= {f"blk.{layer}.{name}": shape for name, shape in of_layer.items()}
        return shapes


SHAPES = (
    Shape("Qwen 2.5 0.5B", "qwen2", 24, 896, 14, 2, 4864, 151_936, 1e6),
    Shape("Llama 3.2 1B", "llama", 16, 2048, 32, 8, 8192, 128_256, 5e5),
)


def write_random_gguf(shape: Shape, bits: str, target: Path, tokenizer_of: Path) -> None:
    """Write a model with random matrices of `TYPES[bits]` to `target`.

    It has the tokenizer of the file `tokenizer_of`, with as many tokens more as `shape` has, which no text becomes.
    """
    writer = gguf.GGUFWriter(target, shape.architecture)
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.hidden // shape.heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1 if bits == "int4" else gguf.LlamaFileType.MOSTLY_Q8_0)
    _copy_tokenizer(writer, tokenizer_of, shape.vocabulary)
    random = np.random.default_rng(0)
    for name, sides in shape.tensors().items():
        if len(sides) == 1:
            writer.add_tensor(name, np.full(sides, not name.endswith(".bias"), np.float32))
        else:
            kind = TYPES["int8" if name.startswith("token_embd") else bits]
            writer.add_tensor(name, _blocks(random, kind, sides), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_tokenizer(writer: gguf.GGUFWriter, source: Path, vocabulary: int) -> None:
    for field in gguf.GGUFReader(source).fields.values():
        if not field.name.startswith("tokenizer."):
            continue
        value: Any = field.contents()
        more = range(vocabulary - len(value)) if field.types[0] == gguf.GGUFValueType.ARRAY else range(0)
        if field.name == "tokenizer.ggml.tokens":
            value = [*value, *(f"<unused_{number}>" for number in more)]
        elif field.name == "tokenizer.ggml.token_type":
            value = [*value, *(int(gguf.TokenType.NORMAL) for _ in more)]
        sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, value, field.types[0], sub_type=sub_type)


def _blocks(random: np.random.Generator, kind: Any, sides: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Return a matrix of random blocks, whose weights spread around 0 as those of a trained model of this width do."""
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    rows, columns = sides
    blocks = random.integers(0, 256, (prod(sides) // block_size, block_bytes), dtype=np.uint8)
    largest = random.uniform(1, 2, (len(blocks), 1)) / np.sqrt(columns)
    # A block begins with its scale, or with its scale and minimum.
    factors = [largest * 2 / 15, -largest] if kind == TYPES["int4"] else [largest / 127]
    halves = np.concatenate(factors, axis=1).astype(np.float16).view(np.uint8)
    blocks[:, : halves.shape[1]] = halves
    return blocks.reshape(rows, -1)
