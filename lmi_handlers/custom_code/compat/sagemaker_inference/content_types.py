"""`from sagemaker_inference.content_types import CSV, JSON, NPY, NPZ`."""

from lmi_handlers.custom_code.content import ANY, CSV, JSON, NPY, NPZ, TEXTS

OCTET_STREAM = "application/octet-stream"
UTF8_TYPES = list(TEXTS)

__all__ = ["ANY", "CSV", "JSON", "NPY", "NPZ", "OCTET_STREAM", "UTF8_TYPES"]
