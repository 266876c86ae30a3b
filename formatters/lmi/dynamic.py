r"""LMI's dynamic-batch formats, byte for byte as DJL Serving 0.31 writes them.

[\n  {\n    "generated_text":"..."\n  }\n]      always a list, even for a single prompt
{"outputs": ["Deep"]}\n                          one line per new piece of text, one entry per prompt, ASCII only
"""

from __future__ import annotations

import json

from formatters.base import Formatter
from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.outputs import TextDelta
from lmi_handlers.core.request import GenerationRequest

FAILURE = "invoke handler failure"


class DynamicJsonFormatter(Formatter):
    """One list of `generated_text` objects, in the order of the prompts."""

    content_type = "application/json"
    streams = False

    def __init__(self, request: GenerationRequest, prompt_tokens: tuple[int, ...]) -> None:
        super().__init__(request, prompt_tokens)
        self._texts = [prompt if request.return_full_text else "" for prompt in request.prompts]

    def feed(self, delta: TextDelta) -> bytes:
        """Store the text."""
        self._texts[delta.index] += delta.text
        return b""

    def finish(self) -> bytes:
        """Return the list."""
        return pretty([{"generated_text": text} for text in self._texts]).encode()


class DynamicJsonLinesFormatter(Formatter):
    """Lines of new text, used with `option.enable_streaming`."""

    content_type = "application/jsonlines"
    streams = True

    def feed(self, delta: TextDelta) -> bytes:
        """Return a line with "" for the other prompts, or nothing if there is no new text."""
        if not delta.text:
            return b""
        outputs = [""] * len(self.request.prompts)
        outputs[delta.index] = delta.text
        return json.dumps({"outputs": outputs}).encode() + b"\n"

    def finish(self) -> bytes:
        """Return nothing: the stream has no closing line."""
        return b""

    def error(self, error: LMIError) -> bytes:
        """Return the error body on one line."""
        return json.dumps({"code": 424, "message": FAILURE, "error": str(error)}).encode() + b"\n"


def pretty(value: object) -> str:
    """Render JSON as DJL's `Output` does: indented by two, no space after the colon, non-ASCII text not escaped."""
    return json.dumps(value, ensure_ascii=False, indent=2, separators=(",", ":"))
