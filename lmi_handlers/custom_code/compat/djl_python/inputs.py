"""`from djl_python.inputs import Input`."""

from lmi_handlers.custom_code.inputs import Input

__all__ = ["Input"]
