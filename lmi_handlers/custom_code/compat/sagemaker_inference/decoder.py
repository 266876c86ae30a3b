"""`from sagemaker_inference.decoder import decode`."""

from lmi_handlers.custom_code.content import decode

__all__ = ["decode"]
