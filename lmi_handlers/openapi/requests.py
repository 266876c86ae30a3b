"""Structs for bodies that are not decoded as one: LMI's is checked by hand, MindIE's after dropping nulls."""

from __future__ import annotations

from typing import Annotated

import msgspec

from lmi_handlers.apis.lmi.body import LmiParameters
from lmi_handlers.apis.mindie.body import DOCUMENTED, MindieBody
from lmi_handlers.apis.mindie.body import MindieParameters as DecodedParameters

PlainPrompt = Annotated[str, msgspec.Meta(min_length=1)]
"""A `text/plain` body."""


class LmiRequest(msgspec.Struct):
    """A prompt, or a list of prompts. `adapters` is one name for all prompts, or a list with one name per prompt."""

    inputs: str | list[str]
    parameters: LmiParameters = LmiParameters()
    stream: bool | None = None
    adapters: str | list[str | None] | None = None


MindieParameters = msgspec.defstruct(
    "MindieParameters",
    [
        (field.name, field.type | None, None)
        for field in msgspec.structs.fields(DecodedParameters)
        if field.name in DOCUMENTED
    ],
    namespace={"__doc__": "The `parameters` object. null means absent."},
)

MindieRequest = msgspec.defstruct(
    "MindieRequest",
    [("inputs", str), ("parameters", MindieParameters | None, None), ("stream", bool | None, None)],
    namespace={"__doc__": MindieBody.__doc__},
)
