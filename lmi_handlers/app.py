"""The public name of the application: `lmi_handlers.app:create_app()` is what gunicorn is given."""

from __future__ import annotations

from lmi_handlers.launch.app import create_app

__all__ = ["create_app"]
