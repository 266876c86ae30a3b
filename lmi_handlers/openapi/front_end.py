"""What the front end answers by itself, in the shape of DJL Serving's."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class FrontEndError(msgspec.Struct):
    """What the router refuses, in the shape of DJL's front end."""

    code: int
    type: str
    message: str


class Health(msgspec.Struct):
    """A model's state, and while it is not healthy what it is waiting for."""

    status: str
    phase: str | UnsetType = UNSET
