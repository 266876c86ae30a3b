"""HTTP edge, configuration, text layer and process boundary of the handler container."""

__version__ = "0.1.0"
