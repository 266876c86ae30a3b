"""Formatters of the first generation: the request itself in, tokens out."""

import json

from custom_types import Question
from djl_python import Input
from djl_python.encode_decode import decode
from djl_python.input_parser import input_formatter
from djl_python.output_formatter import TextGenerationOutput, output_formatter
from djl_python.request_io import RequestInput


@input_formatter
def custom_input_formatter(input_item: Input, **kwargs) -> RequestInput:
    content_type = input_item.get_property("Content-Type")
    input_map = decode(input_item, content_type)
    request_input = Question()
    request_input.input_text = input_map.pop("question")
    request_input.parameters = input_map.pop("params", {})
    request_input.language = input_map.pop("language", "en")
    return request_input


@output_formatter
def custom_output_formatter(request_output: TextGenerationOutput) -> str:
    best_sequence = request_output.sequences[request_output.best_sequence_index]
    next_token, first_token, last_token = best_sequence.get_next_token()
    result = {"token_text": next_token.text, "language": request_output.input.language}
    if last_token:
        result["finish_reason"] = best_sequence.finish_reason
    return json.dumps(result) + "\n"
