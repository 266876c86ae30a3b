r"""LMI's dynamic-batch formats, byte for byte as DJL Serving 0.31 writes them.

[\n  {\n    "generated_text":"..."\n  }\n]      always a list, even for a single prompt
{"outputs": ["Deep"]}\n                          one line per new piece of text, one entry per prompt, ASCII only
"""

from __future__ import annotations

import json

import msgspec

from formatters.base import CollectingFormatter, Formatter
from formatters.lmi import schemas
from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.outputs import TextDelta

FAILURE = "invoke handler failure"


class DynamicJsonFormatter(CollectingFormatter):
    """One list of `generated_text` objects, in the order of the prompts."""

    def finish(self) -> bytes:
        return pretty(
            [schemas.DynamicBatchText(self.generated_text(output), self.continued_by) for output in self.outputs]
        )


class DynamicJsonLinesFormatter(Formatter):
    """Lines of new text, used with `option.enable_streaming`."""

    content_type = "application/jsonlines"
    streams = True

    def feed(self, delta: TextDelta) -> bytes:
        """Return a line with "" for the other prompts, or nothing if there is no new text."""
        if not delta.text:
            return b""
        outputs = [""] * len(self.prompts)
        outputs[delta.index] = delta.text
        return dumps(schemas.DynamicBatchOutputs(outputs))

    def finish(self) -> bytes:
        if self.continuation is None:
            return b""  # the stream has no closing line
        return dumps(schemas.DynamicBatchOutputs([""], self.continuation))

    def error(self, error: LMIError) -> bytes:
        return dumps(schemas.DynamicBatchError(424, FAILURE, str(error)))


def dumps(record: msgspec.Struct) -> bytes:
    """Encode one line. Text is escaped to ASCII, which msgspec cannot do."""
    return json.dumps(msgspec.to_builtins(record)).encode() + b"\n"


def pretty(document: object) -> bytes:
    """Encode as DJL's `Output` does: indented by two, without a space after the colon, which msgspec would write."""
    return json.dumps(msgspec.to_builtins(document), ensure_ascii=False, indent=2, separators=(",", ":")).encode()
