"""vLLM's object of constraints, `structured_outputs`, and its older `guided_*`, as LMI's and OpenAI's dialects take them."""

from __future__ import annotations

from typing import Any, Protocol

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


class Constrained(Protocol):
    """A body that has them."""

    @property
    def structured_outputs(self) -> StructuredOutputsBody | None:
        """Today's form, stronger than the others."""

    @property
    def guided_json(self) -> dict[str, Any] | bool | str | None:
        """Its `json`."""

    @property
    def guided_regex(self) -> str | None:
        """Its `regex`."""

    @property
    def guided_choice(self) -> list[str] | None:
        """Its `choice`."""

    @property
    def guided_grammar(self) -> str | None:
        """Its `grammar`."""


def constraint_of(body: Constrained) -> StructuredOutputs | None:
    """Return what both forms ask for together, None where neither asks for anything. Raises `InvalidRequest`."""
    asked = body.structured_outputs or StructuredOutputsBody()
    older = {
        "json": body.guided_json,
        "regex": body.guided_regex,
        "choice": body.guided_choice,
        "grammar": body.guided_grammar,
    }
    given = {name: value for name, value in older.items() if value is not None and getattr(asked, name) is None}
    if not given and body.structured_outputs is None:
        return None
    return msgspec.structs.replace(asked, **given).structured_outputs()
