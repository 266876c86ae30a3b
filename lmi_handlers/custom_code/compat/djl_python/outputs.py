"""`from djl_python.outputs import Output`."""

from lmi_handlers.custom_code.outputs import Output

__all__ = ["Output"]
