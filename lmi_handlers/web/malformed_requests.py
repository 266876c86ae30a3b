"""The log lines of requests that gunicorn cannot read."""

from __future__ import annotations

import re

_QUOTED = re.compile(r"""(Invalid request from ip=[^'"]*)(?!(?<=Header: )'[A-Z-]{1,40}'$)['"].*""", re.DOTALL)


def without_content(message: str) -> str:
    """Return a warning of gunicorn's without what the client has sent, except for the name of a header.

    That may be a key, in a header without a colon, or a prompt: after a `Content-Length` that is too small, the rest of a
    body counts as the next request. Source: `Worker.handle_error` of gunicorn 23 to 27.
    """
    return _QUOTED.sub(r"\1(not shown)", message)
