"""Tokenizers of models of code: one token per byte, and the models' own added tokens, in their order and with their ids.

The lists are those that the models are published with. Their vocabularies are not here: they have no part in where
a gap begins and ends.
"""

# ruff: noqa: RUF001  DeepSeek's tokens contain full-width bars.

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from empty_weights import NO_TENSORS
from tokenizers import pre_tokenizers

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())

_QWEN = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> <|quad_start|> "
    "<|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call> </tool_call> "
    "<|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>"
)
_STARCODER = (
    "<|endoftext|> <fim_prefix> <fim_middle> <fim_suffix> <fim_pad> <repo_name> <file_sep> <issue_start> <issue_comment> "
    "<issue_closed> <jupyter_start> <jupyter_text> <jupyter_code> <jupyter_output> <jupyter_script> <empty_output> "
    "<code_to_intermediate> <intermediate_to_code> <pr> <pr_status> <pr_is_merged> <pr_base> <pr_file> <pr_base_code> "
    "<pr_diff> <pr_diff_hunk> <pr_comment> <pr_event_id> <pr_review> <pr_review_state> <pr_review_comment> "
    "<pr_in_reply_to_review_id> <pr_in_reply_to_comment_id> <pr_diff_hunk_comment_line> <NAME> <EMAIL> <KEY> <PASSWORD>"
)
_CODE_LLAMA = "▁<PRE> ▁<SUF> ▁<MID> ▁<EOT>"
_DEEPSEEK = (
    "õ ÷ Á ý À ÿ ø ú þ ü ù ö û <｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜fim▁hole｜> <｜fim▁begin｜> <｜fim▁end｜> <pad> "
    "<|User|> <|Assistant|> <|EOT|>"
)


def _numbered(tokens: str, first: int) -> dict[str, int]:
    return {token: first + place for place, token in enumerate(tokens.split())}


ADDED: dict[str, dict[str, int]] = {
    "Qwen 2.5 Coder": _numbered(_QWEN, 151643),
    "StarCoder 2": _numbered(_STARCODER, 0),
    "Code Llama": {"<unk>": 0, "<s>": 1, "</s>": 2} | _numbered(_CODE_LLAMA, 32007),
    "DeepSeek Coder": _numbered(_DEEPSEEK, 32000),
}
"""The added tokens by model, with their ids."""

FILLING: dict[str, Sequence[str]] = {
    "Qwen 2.5 Coder": ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    "StarCoder 2": ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    "Code Llama": ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    "DeepSeek Coder": ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
}
"""Those around a gap: before the text in front of it, before the text after it, and before what fills it."""


def write_code_model(directory: Path, model: str) -> None:
    """Write a model without weights with these tokens. A byte's id is one that no added token has."""
    added = ADDED[model]
    free = [number for number in range(len(ALPHABET) + len(added)) if number not in added.values()]
    vocabulary = dict(zip(ALPHABET, free, strict=False)) | added
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    described = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token, number in added.items()
        ],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    (directory / "tokenizer.json").write_text(json.dumps(described))
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    size = max(vocabulary.values()) + 1
    (directory / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": size}))
    (directory / "model.safetensors").write_text(NO_TENSORS)
