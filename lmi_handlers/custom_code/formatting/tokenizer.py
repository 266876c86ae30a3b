"""The tokenizer that formatters get."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from lmi_handlers.core.plugins import importing
from lmi_handlers.text.bundle import TOKENIZER_FILE, load_text_bundle


class LazyTokenizer:
    """The model's tokenizer of the transformers library, which is imported when a formatter first uses it."""

    def __init__(self, *directories: Path) -> None:
        """Each of the `directories` has the text bundle once its engine has written it."""
        self._directories = directories

    @cached_property
    def _tokenizer(self) -> Any:
        with importing():
            from transformers import PreTrainedTokenizerFast

        there = (directory for directory in self._directories if (directory / TOKENIZER_FILE).exists())
        directory = next(there, self._directories[0])
        bundle = load_text_bundle(directory)
        files = {"tokenizer_file": str(directory / TOKENIZER_FILE)}
        tokenizer: Any = PreTrainedTokenizerFast(**files, **bundle.special_tokens)  # type: ignore[no-untyped-call]
        tokenizer.chat_template = bundle.chat_template
        return tokenizer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle look for their methods
            raise AttributeError(name)
        return getattr(self._tokenizer, name)

    def __call__(self, *texts: Any, **options: Any) -> Any:
        return self._tokenizer(*texts, **options)

    def __len__(self) -> int:
        return len(self._tokenizer)

    def __bool__(self) -> bool:
        return True
