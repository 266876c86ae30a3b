"""requests: LMI's rolling-batch format, whole, with details, and as a stream of lines.

lmi serve --model-dir examples/tasks/chat
python examples/clients/lmi_rolling_batch.py
"""

from __future__ import annotations

import json
import os

import requests

url = os.environ.get("SERVER_URL", "http://127.0.0.1:8080") + "/invocations"
prompt = "The capital of France is"

response = requests.post(
    url, json={"inputs": prompt, "parameters": {"max_new_tokens": 8, "details": True}}, timeout=240
)
response.raise_for_status()
answer = response.json()
print(answer["generated_text"])
for token in answer["details"]["tokens"]:
    print(f"{token['log_prob']:8.3f}  {token['text']!r}")

body = {"inputs": prompt, "parameters": {"max_new_tokens": 8}, "stream": True}
with requests.post(url, json=body, stream=True, timeout=240) as response:
    response.raise_for_status()
    for line in response.iter_lines():
        record = json.loads(line)
        if record.get("details", {}).get("finish_reason") == "error":  # the stream has begun, so the status is 200
            raise SystemExit(record["token"].get("error_msg", "generation failed"))
        print(record["token"]["text"], end="", flush=True)
print()
