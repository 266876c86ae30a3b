"""Reads the path of a request: once, before any rule looks at it.

Several slashes in a row are one, as for nginx and Werkzeug: many clients put a path behind a base URL that ends with a
slash. Whatever else a proxy, a rule and a route might read differently is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_SLASHES = re.compile("/{2,}")
_DOT_SEGMENT = re.compile(r"/\.{1,2}(/|$)")
_NEVER_IN_PATHS = re.compile(r"[\\\x00-\x1f\x7f-\x9f]")


class BadPath(ValueError):
    """The target of a request is no path, or one that has several readings."""


def read_path(octets: str) -> str:
    """Return the path that every rule sees. Raises `BadPath`.

    `octets` is percent-decoded, one character per byte, as WSGI's `PATH_INFO`, and so is the result. An encoded slash is
    a slash. No target at all, as in `GET http://host`, is the root.
    """
    if octets[:1] == "/" and octets.isascii() and octets.isprintable() and not _has_any(octets):
        return octets
    path = _SLASHES.sub("/", octets) or "/"
    if path[0] != "/":
        raise BadPath("the target of a request must be a path")
    try:
        text = path.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise BadPath("the path of a request must be UTF-8") from None
    if _NEVER_IN_PATHS.search(text):
        raise BadPath("the path of a request must not have backslashes or control characters")
    if _DOT_SEGMENT.search(text):
        raise BadPath("the path of a request must not have the segments '.' or '..'")
    return path


def path_text(environ: Mapping[str, Any]) -> str:
    """Return the path of a WSGI environment, after `read_path`, as text."""
    octets: str = environ["PATH_INFO"]
    return octets if octets.isascii() else octets.encode("latin-1").decode()


def _has_any(octets: str) -> bool:
    return "//" in octets or "/." in octets or "\\" in octets
