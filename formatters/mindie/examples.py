"""Examples of what MindIE's routes answer, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from formatters.mindie import schemas
from formatters.tgi.schemas import Token

ANSWERS: Mapping[Any, object] = {
    schemas.MindieResponse: schemas.MindieResponse(generated_text="Deep Learning is a kind of machine learning."),
    schemas.MindieStreamResponse: schemas.MindieStreamResponse(Token(18800, "Deep", -0.25, special=False), None, None),
}
"""By type."""
