"""Responses of the front end itself, in DJL Serving's format."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class FrontEndError(msgspec.Struct):
    """An error from the router, in the format of DJL's front end."""

    code: int
    type: str
    message: str


class Health(msgspec.Struct):
    """A model's state. `phase` says what the model is waiting for while it is not healthy."""

    status: str
    phase: str | UnsetType = UNSET
