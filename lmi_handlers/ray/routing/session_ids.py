"""Session ids end with the name of the replica that has the session: `<uuid>-<replica>`."""

from __future__ import annotations

import re
from collections.abc import Mapping

_HEADER = b"x-amzn-sagemaker-session-id"
_ID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-([0-9a-z]{1,64})")


def holder(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the name of the replica with the request's session, None if it has none, or one that says no name."""
    found = _ID.fullmatch(headers.get(_HEADER, b""))
    return found[1].decode() if found else None
