"""openai: an answer that fits a JSON schema.

lmi serve --model-dir examples/tasks/chat
python examples/clients/openai_structured_output.py
"""

from __future__ import annotations

import json
import os

import openai

client = openai.OpenAI(base_url=os.environ.get("SERVER_URL", "http://127.0.0.1:8080") + "/v1", api_key="-")
schema = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "continent": {"enum": ["Africa", "America", "Asia", "Europe", "Oceania"]},
    },
    "required": ["city", "continent"],
    "additionalProperties": False,
}
answer = client.chat.completions.create(
    model="any",
    messages=[{"role": "user", "content": "Where is the Eiffel Tower?"}],
    response_format={"type": "json_schema", "json_schema": {"name": "place", "schema": schema}},
    max_tokens=64,
)
place = json.loads(answer.choices[0].message.content)
print(f"{place['city']}, {place['continent']}")
