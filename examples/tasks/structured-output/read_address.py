"""Read an address from a text. A grammar makes every answer fit the schema, even that of a small model.

lmi serve --model-dir examples/tasks/structured-output
python examples/tasks/structured-output/read_address.py "Ada Lovelace lives at 12 St James's Square in London."
"""

from __future__ import annotations

import json
import os
import sys

import requests

ADDRESS = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "street": {"type": "string", "maxLength": 40},
        "number": {"type": "integer", "minimum": 1, "maximum": 9999},
        "city": {"type": "string", "maxLength": 40},
    },
    "required": ["name", "street", "number", "city"],
    "additionalProperties": False,
}

url = os.environ.get("SERVER_URL", "http://127.0.0.1:8080") + "/v1/chat/completions"
body = {
    "messages": [{"role": "user", "content": f"Return the address as JSON: {sys.argv[1]}"}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "address", "schema": ADDRESS}},
    "max_tokens": 160,
}
response = requests.post(url, json=body, timeout=240)
response.raise_for_status()
address = json.loads(response.json()["choices"][0]["message"]["content"])
for name, value in address.items():
    print(f"{name}: {value}")
