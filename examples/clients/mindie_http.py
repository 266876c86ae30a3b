"""requests: MindIE's text inference interface.

OPTION_DIALECT=mindie lmi serve --model-dir examples/tasks/chat
python examples/clients/mindie_http.py
"""

from __future__ import annotations

import os

import requests

url = os.environ.get("SERVER_URL", "http://127.0.0.1:8080")
body = {"inputs": "The capital of France is", "parameters": {"max_new_tokens": 16, "details": True}, "stream": False}
response = requests.post(url, json=body, timeout=240)
response.raise_for_status()
answer = response.json()
print(answer["generated_text"])
print(f"{answer['details']['generated_tokens']} tokens, {answer['details']['finish_reason']}")
