"""Bodies and answers of your own: `{"question": ..}` becomes `{"answer": .., "tokens": ..}`."""

from __future__ import annotations

from typing import Any

from djl_python.input_parser import input_formatter
from djl_python.output_formatter import output_formatter


@input_formatter
def read(decoded_payload: dict[str, Any], tokenizer: Any = None, **kwargs: Any) -> dict[str, Any]:  # noqa: ARG001
    """Make LMI's body of the clients' one. All of the server's checks apply to it."""
    if "question" not in decoded_payload:
        raise ValueError("the body has no field 'question'")
    limit = decoded_payload.get("limit", 64)
    return {"inputs": decoded_payload["question"], "parameters": {"max_new_tokens": limit, "details": True}}


@output_formatter
def write(response: dict[str, Any]) -> dict[str, Any]:
    """Make the clients' answer of LMI's."""
    if "generated_text" not in response:  # an error stays as it is
        return response
    return {"answer": response["generated_text"].strip(), "tokens": response["details"]["generated_tokens"]}
