"""Replicas on Ray Serve. `lmi_handlers.ray:app` is the application for `serve run` and `serve deploy`."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Import the application only where it is used: the command line imports this folder, and Ray takes a second."""
    if name == "app":
        from lmi_handlers.ray.application import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
