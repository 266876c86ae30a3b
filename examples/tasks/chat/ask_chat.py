"""A conversation: each question has everything that was said before, because the server keeps nothing.

lmi serve --model-dir examples/tasks/chat
python examples/tasks/chat/ask_chat.py "What is the capital of Japan?" "And of China?"
"""

from __future__ import annotations

import os
import sys

import requests

url = os.environ.get("SERVER_URL", "http://127.0.0.1:8080") + "/v1/chat/completions"
messages = [{"role": "system", "content": "Answer in one sentence."}]
for question in sys.argv[1:]:
    messages.append({"role": "user", "content": question})
    response = requests.post(url, json={"messages": messages, "max_tokens": 64, "temperature": 0.2}, timeout=240)
    response.raise_for_status()
    messages.append(response.json()["choices"][0]["message"])
    print(f"{question}\n{messages[-1]['content']}")
