"""The tokens with which a model of code fills in the middle, found in its tokenizer.

Sources: the models' cards, and the order of llama.cpp's server, which is the same for all of them.
"""

# ruff: noqa: RUF001  DeepSeek's tokens contain full-width bars.

from __future__ import annotations

from collections.abc import Container

import msgspec


class InfillFormat(msgspec.Struct, frozen=True):
    """The tokens in front of what stands before the gap, what stands after it, and what fills it.

    After a token in `ends`, the model writes something else than the middle.
    """

    prefix: str
    suffix: str
    middle: str
    ends: tuple[str, ...]

    def prompt(self, before: str, after: str) -> str:
        """Return the prompt for the text between `before` and `after`."""
        return f"{self.prefix}{before}{self.suffix}{after}{self.middle}"


FORMATS = (
    # Qwen 2.5 Coder, CodeGemma
    InfillFormat(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ("<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>"),
    ),
    # StarCoder 2, Granite Code
    InfillFormat(
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        ("<|endoftext|>", "<fim_pad>", "<repo_name>", "<reponame>", "<file_sep>", "<filename>"),
    ),
    # Code Llama
    InfillFormat("▁<PRE>", "▁<SUF>", "▁<MID>", ("▁<EOT>",)),
    # DeepSeek Coder
    InfillFormat("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", ("<｜end▁of▁sentence｜>", "<|EOT|>")),
)


def find_infill(added: Container[str]) -> InfillFormat | None:
    """Return the format whose tokens are among the tokenizer's added ones, without the ends that it lacks."""
    for form in FORMATS:
        if all(token in added for token in (form.prefix, form.suffix, form.middle)):
            return msgspec.structs.replace(form, ends=tuple(token for token in form.ends if token in added))
    return None
