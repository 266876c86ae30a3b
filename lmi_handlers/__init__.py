"""The handler container: HTTP layer, configuration, text processing and the link to the engine process."""

__version__ = "0.1.0"
