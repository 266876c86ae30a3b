"""The output formatter of one adapter."""

import json

from djl_python.output_formatter import TextGenerationOutput, output_formatter


@output_formatter
def formal_output_formatter(request_output: TextGenerationOutput) -> str:
    sequence = request_output.sequences[request_output.best_sequence_index]
    token, first_token, last_token = sequence.get_next_token()
    return json.dumps({"from": request_output.input.adapters, "last": last_token}) + "\n"
