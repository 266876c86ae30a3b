"""Formatters of the second generation: the decoded body in, OpenAI's response out."""

from djl_python.input_parser import input_formatter
from djl_python.output_formatter import output_formatter


@input_formatter
def add_instructions(decoded_payload: dict, tokenizer=None, **kwargs) -> dict:
    if "messages" in decoded_payload:
        decoded_payload["messages"].insert(0, {"role": "system", "content": "Be brief."})
    if "question" in decoded_payload:
        decoded_payload["messages"] = [{"role": "user", "content": decoded_payload.pop("question")}]
    return decoded_payload


@output_formatter
def shout(response):
    for choice in response.choices:
        if hasattr(choice, "message") and choice.message:
            choice.message.content = choice.message.content.upper()
        elif hasattr(choice, "delta") and choice.delta and choice.delta.content:
            choice.delta.content = choice.delta.content.upper()
    return response
