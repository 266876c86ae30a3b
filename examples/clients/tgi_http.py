"""requests: TGI's stream, which is server-sent events, with the reason for its end.

lmi serve --model-dir examples/tasks/chat
python examples/clients/tgi_http.py
"""

from __future__ import annotations

import json
import os

import requests

url = os.environ.get("SERVER_URL", "http://127.0.0.1:8080")
body = {"inputs": "The capital of France is", "parameters": {"max_new_tokens": 16, "details": True}}
with requests.post(f"{url}/generate_stream", json=body, stream=True, timeout=240) as response:
    response.raise_for_status()
    for line in response.iter_lines():
        if not line.startswith(b"data:"):
            continue
        event = json.loads(line.removeprefix(b"data:"))
        if "error" in event:  # the stream has begun, so the status is 200
            raise SystemExit(event["error"])
        print(event["token"]["text"], end="", flush=True)
        if event["details"]:
            print(f"\n{event['details']['generated_tokens']} tokens, {event['details']['finish_reason']}")
