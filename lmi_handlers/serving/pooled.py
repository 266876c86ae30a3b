"""The embedding of one prompt, in the place of the text of a sequence."""

from __future__ import annotations

from lmi_handlers.core.outputs import TextDelta, TokenOutput


class PooledPrompt:
    """Turns the only `TokenOutput` of an embedded prompt into a `TextDelta`."""

    def __init__(self, index: int) -> None:
        self.index = index

    def feed(self, output: TokenOutput) -> TextDelta:
        return TextDelta(index=self.index, embedding=output.embedding, finish_reason=output.finish_reason)
