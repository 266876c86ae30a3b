"""The tokens with which a model of code fills in the middle, found in its tokenizer.

Sources: the models' cards, and the order of llama.cpp's server, which is the same for all of them.
"""

# ruff: noqa: RUF001  DeepSeek's tokens contain full-width bars.

from __future__ import annotations

from collections.abc import Container, Sequence

import msgspec

SNIPPET = "\n\n--- snippet ---\n\n"
"""What llama.cpp's server puts before another file if the model has no token for that."""


class InfillFormat(msgspec.Struct, frozen=True):
    """The tokens in front of what stands before the gap, what stands after it, and what fills it.

    After a token in `ends`, the model writes something else than the middle. `repository` and `file` begin the name of a
    repository and that of a file, if the model was trained with other files of the same repository.
    """

    prefix: str
    suffix: str
    middle: str
    ends: tuple[str, ...]
    repository: str | None = None
    file: str | None = None

    def prompt(self, before: str, after: str) -> str:
        """Return the prompt for the text between `before` and `after`."""
        return f"{self.prefix}{before}{self.suffix}{after}{self.middle}"

    def context(self, files: Sequence[tuple[str, str]]) -> str:
        """Return what goes before the prompt: the names and texts of other `files`, as llama.cpp's server writes them."""
        name, before = ("", SNIPPET) if self.file is None else ("{}\n", self.file)
        head = "" if self.repository is None else f"{self.repository}myproject\n"
        last = "" if self.file is None else f"{self.file}filename\n"
        return head + "".join([before + name.format(file) + text for file, text in files]) + last


FORMATS = (
    # Qwen 2.5 Coder, CodeGemma
    InfillFormat(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ("<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>"),
        repository="<|repo_name|>",
        file="<|file_sep|>",
    ),
    # StarCoder 2, Granite Code
    InfillFormat(
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        ("<|endoftext|>", "<fim_pad>", "<repo_name>", "<reponame>", "<file_sep>", "<filename>"),
        repository="<reponame>",
    ),
    # Code Llama
    InfillFormat("▁<PRE>", "▁<SUF>", "▁<MID>", ("▁<EOT>",)),
    # DeepSeek Coder
    InfillFormat("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", ("<｜end▁of▁sentence｜>", "<|EOT|>")),
)


def find_infill(added: Container[str]) -> InfillFormat | None:
    """Return the format whose tokens are among the tokenizer's added ones, without those that it can do without."""
    for form in FORMATS:
        if all(token in added for token in (form.prefix, form.suffix, form.middle)):
            return msgspec.structs.replace(
                form,
                ends=tuple(token for token in form.ends if token in added),
                repository=form.repository if form.repository in added else None,
                file=form.file if form.file in added else None,
            )
    return None
