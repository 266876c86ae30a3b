"""The handler container: HTTP layer, configuration, text processing and the link to the engine process."""

__version__ = "1.0.0"
"""The only place of the version: pyproject.toml reads it from here."""
