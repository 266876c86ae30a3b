"""Let the model call functions of this program until it has an answer.

lmi serve --model-dir examples/tasks/tool-use
python examples/tasks/tool-use/multiply.py "How much is 17 times 23?"
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import requests

URL = os.environ.get("SERVER_URL", "http://127.0.0.1:8080") + "/v1/chat/completions"
NUMBER = {"type": "integer", "minimum": 0, "maximum": 999}
TOOL = {
    "type": "function",
    "function": {
        "name": "multiply",
        "description": "Multiply two numbers",
        "parameters": {
            "type": "object",
            "properties": {"a": NUMBER, "b": NUMBER},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}


def ask(messages: list[dict[str, Any]], tool_choice: str) -> dict[str, Any]:
    """Return the model's next message."""
    body = {"messages": messages, "tools": [TOOL], "tool_choice": tool_choice, "parallel_tool_calls": False}
    response = requests.post(URL, json=body | {"max_tokens": 128, "temperature": 0}, timeout=240)
    response.raise_for_status()
    message: dict[str, Any] = response.json()["choices"][0]["message"]
    return message


conversation: list[dict[str, Any]] = [{"role": "user", "content": sys.argv[1]}]
conversation.append(ask(conversation, "required"))  # a small model does not always see that it needs a tool
for call in conversation[-1]["tool_calls"]:
    arguments = json.loads(call["function"]["arguments"])
    product = arguments["a"] * arguments["b"]
    print(f"{arguments['a']} x {arguments['b']} = {product}")
    conversation.append({"role": "tool", "tool_call_id": call["id"], "content": str(product)})
print(ask(conversation, "none")["content"])
