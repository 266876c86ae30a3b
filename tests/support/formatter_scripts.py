"""`model.py` files with formatters, in the style of those that LMI's users publish."""

from __future__ import annotations

TOKENS = """
import json
import os
import re
import time

from djl_python import Input
from djl_python.encode_decode import decode
from djl_python.input_parser import input_formatter
from djl_python.output_formatter import TextGenerationOutput, output_formatter
from djl_python.request_io import RequestInput, TextInput

import shouting


class MyInput(TextInput):
    fault: str


@input_formatter
def read(input_item: Input, **kwargs) -> RequestInput:
    payload = decode(input_item, input_item.get_property("content-type"))
    request = MyInput()
    request.input_text = payload.pop("question")
    request.parameters = payload.pop("parameters", {})
    request.parameters["stream"] = payload.pop("stream", False)
    request.fault = payload.pop("fault", "")
    fault(request.fault, "input")
    return request


@output_formatter
def write(request_output: TextGenerationOutput) -> str:
    sequence = request_output.sequences[request_output.best_sequence_index]
    token, is_first, is_last = sequence.get_next_token()
    if not is_first:
        fault(request_output.input.fault, "output")
    if request_output.input.fault == "type":
        return None
    if request_output.input.fault == "deep":
        return "[\\n" * 5000
    line = {"id": token.id, "text": shouting.shout(token.text), "logprob": token.log_prob}
    if is_first:
        line["prompt"] = request_output.input.input_text
    if is_last:
        line |= {"reason": sequence.finish_reason, "all": len(sequence.tokens), "finished": request_output.finished}
    return json.dumps(line) + "\\n"


def fault(kind, where):
    match kind.split("-"):
        case ["raise", place] if place == where:
            raise ValueError(f"no {where}")
        case ["hang", place] if place == where:
            re.match("(a+)+b", "a" * 60)
        case ["sleep", place] if place == where:
            time.sleep(60)
        case ["leave", place] if place == where:
            raise SystemExit(3)
        case ["exit", place] if place == where:
            os._exit(3)
"""

SHOUTING = "def shout(text):\n    return text.upper()\n"

RESPONSES = """
import json

from djl_python.input_parser import input_formatter
from djl_python.output_formatter import output_formatter


@input_formatter
def read(decoded_payload, tokenizer=None):
    if "question" in decoded_payload:
        decoded_payload["inputs"] = decoded_payload.pop("question")
    return decoded_payload


@output_formatter
def write(response, **kwargs):
    if isinstance(response, str) and response.startswith("data: "):
        assert json.loads(response[6:])["object"] == response.object
    if hasattr(response, "choices") and response.choices:
        choice = response.choices[0]
        if hasattr(choice, "delta") and choice.delta.content:
            choice.delta.content = choice.delta.content.upper()
        elif hasattr(choice, "message"):
            choice.message.content = f"[{choice.message.content}]"
        elif hasattr(choice, "text"):
            choice.text = f"<{choice.text}>"
    response.processed_by = "me"
    return response
"""

IDENTITY = """
from djl_python.input_parser import input_formatter
from djl_python.output_formatter import output_formatter


@input_formatter
def read(decoded_payload: dict, tokenizer=None, **kwargs) -> dict:
    return decoded_payload


@output_formatter
def write(response: dict) -> dict:
    return response
"""
