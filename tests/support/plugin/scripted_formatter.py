"""A third party's output format: each token's text and id, as CSV. Found through its entry point only."""

from __future__ import annotations

from typing import ClassVar

from formatters.base import Formatter
from lmi_handlers.core.outputs import TextDelta


class CsvFormatter(Formatter):
    """One line a token, such as `"Hello",1`; a last one with the number of tokens of the prompt."""

    content_type: ClassVar[str] = "text/csv"
    streams: ClassVar[bool] = True

    def feed(self, delta: TextDelta) -> bytes:
        return "".join(f'"{token.text}",{token.id}\n' for token in delta.tokens).encode()

    def finish(self) -> bytes:
        return f'"",{sum(self.prompt_tokens)}\n'.encode()
