"""A third party's output format: text and id of each token as CSV. It is only found through its entry point."""

from __future__ import annotations

from formatters.base import Formatter
from lmi_handlers.core.outputs import TextDelta


class CsvFormatter(Formatter):
    """One line per token, such as `"Hello",1`, and a last line with the number of prompt tokens."""

    content_type = "text/csv"
    streams = True

    def feed(self, delta: TextDelta) -> bytes:
        return "".join(f'"{token.text}",{token.id}\n' for token in delta.tokens).encode()

    def finish(self) -> bytes:
        return f'"",{sum(self.prompt_tokens)}\n'.encode()
