"""LMI's names for what this server gives to `model.py`. Each module here only renames what `custom_code` has."""

from lmi_handlers.custom_code.inputs import Input
from lmi_handlers.custom_code.outputs import Output

__all__ = ["Input", "Output"]
