"""Small GGUF files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
"""Types of a token."""

TOKENS = ("<unk>", "<s>", "</s>", *"abcdefgh", "ab")


def merges_within(tokens: Sequence[str], merges: Sequence[str]) -> list[str]:
    """The merges of a vocabulary that a part of its tokens needs and makes."""
    known = set(tokens)
    return [merge for merge in merges if known.issuperset((*merge.split(" "), merge.replace(" ", "")))]


def make_gguf(
    file: Path,
    architecture: str = "llama",
    *,
    kind: str = "gpt2",
    pre: str | None = "default",
    tokens: Sequence[str] = TOKENS,
    types: Sequence[int] = (CONTROL, CONTROL, CONTROL, *[NORMAL] * (len(TOKENS) - 3)),
    merges: Sequence[str] = ("a b",),
    scores: Sequence[float] | None = None,
    bos: int | None = 1,
    add_bos: bool | None = None,
    add_space: bool | None = None,
    context_length: int = 64,
    matrices: type[np.float32 | np.float16] = np.float32,
) -> Path:
    """Write a complete tiny Llama or Qwen to `file`, with the given tokenizer. Files with `scores` have no `merges`.

    `matrices` is the type of all matrices. Vectors are float32.
    """
    size, feed_forward, head = 32, 64, 16
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_context_length(context_length)
    writer.add_embedding_length(size)
    writer.add_block_count(1)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if matrices is np.float32 else gguf.LlamaFileType.MOSTLY_F16)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model(kind)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if scores is None:
        writer.add_token_merges(merges)
    else:
        writer.add_token_scores(scores)
    if bos is not None:
        writer.add_bos_token_id(bos)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    if add_space is not None:
        writer.add_add_space_prefix(add_space)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages[0].content }}")
    random = np.random.default_rng(0)
    shapes = {
        "token_embd.weight": (len(tokens), size),
        "output_norm.weight": (size,),
        "output.weight": (len(tokens), size),
        "blk.0.attn_norm.weight": (size,),
        "blk.0.attn_q.weight": (size, size),
        "blk.0.attn_k.weight": (head, size),
        "blk.0.attn_v.weight": (head, size),
        "blk.0.attn_output.weight": (size, size),
        "blk.0.ffn_norm.weight": (size,),
        "blk.0.ffn_gate.weight": (feed_forward, size),
        "blk.0.ffn_up.weight": (feed_forward, size),
        "blk.0.ffn_down.weight": (size, feed_forward),
    }
    if architecture == "qwen2":
        shapes |= {"blk.0.attn_q.bias": (size,), "blk.0.attn_k.bias": (head,), "blk.0.attn_v.bias": (head,)}
    if architecture == "qwen3":
        shapes |= {"blk.0.attn_q_norm.weight": (head,), "blk.0.attn_k_norm.weight": (head,)}
    for name, shape in shapes.items():
        writer.add_tensor(name, random.standard_normal(shape).astype(matrices if len(shape) > 1 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
