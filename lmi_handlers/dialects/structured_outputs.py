"""vLLM's object of constraints, `structured_outputs`, as LMI's and OpenAI's dialects take it."""

from __future__ import annotations

from typing import Any

import msgspec

from lmi_handlers.sampling_params import StructuredOutputs


class StructuredOutputsBody(msgspec.Struct, frozen=True, kw_only=True):
    """The object; null means absent. A schema may also be JSON text."""

    json: dict[str, Any] | bool | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None

    def structured_outputs(self) -> StructuredOutputs:
        """Translate. Raises `InvalidRequest` where not exactly one of them is there."""
        return StructuredOutputs(
            json=self.json if isinstance(self.json, str | None) else msgspec.json.encode(self.json).decode(),
            json_object=bool(self.json_object),
            regex=self.regex,
            choice=None if self.choice is None else tuple(self.choice),
            grammar=self.grammar,
        )
