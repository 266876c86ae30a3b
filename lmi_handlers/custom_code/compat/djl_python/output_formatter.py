"""`from djl_python.output_formatter import RequestOutput, TextGenerationOutput, output_formatter`."""

from lmi_handlers.custom_code.decorators import output_formatter
from lmi_handlers.custom_code.request_io import RequestOutput, TextGenerationOutput

__all__ = ["RequestOutput", "TextGenerationOutput", "output_formatter"]
