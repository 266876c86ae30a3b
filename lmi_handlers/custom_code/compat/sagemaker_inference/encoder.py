"""`from sagemaker_inference.encoder import encode`."""

from lmi_handlers.custom_code.content import SUPPORTED_CONTENT_TYPES, encode

__all__ = ["SUPPORTED_CONTENT_TYPES", "encode"]
