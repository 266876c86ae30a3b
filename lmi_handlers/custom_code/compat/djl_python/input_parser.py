"""`from djl_python.input_parser import input_formatter, init_handler, prediction_handler`."""

from lmi_handlers.custom_code.decorators import init_handler, input_formatter, prediction_handler

__all__ = ["init_handler", "input_formatter", "prediction_handler"]
