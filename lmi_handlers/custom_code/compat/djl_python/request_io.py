"""`from djl_python.request_io import RequestInput, RequestOutput, Sequence, TextGenerationOutput, TextInput, Token`."""

from lmi_handlers.custom_code.request_io import (
    RequestInput,
    RequestOutput,
    Sequence,
    TextGenerationOutput,
    TextInput,
    Token,
)

__all__ = ["RequestInput", "RequestOutput", "Sequence", "TextGenerationOutput", "TextInput", "Token"]
