"""huggingface_hub: TGI's text generation, token by token, and a chat.

lmi serve --model-dir examples/tasks/chat
python examples/clients/huggingface_hub_client.py
"""

from __future__ import annotations

import os

from huggingface_hub import InferenceClient

client = InferenceClient(os.environ.get("SERVER_URL", "http://127.0.0.1:8080"), timeout=60)

for token in client.text_generation("The capital of France is", max_new_tokens=16, stream=True):
    print(token, end="", flush=True)
print()

answer = client.chat_completion([{"role": "user", "content": "What is the capital of Japan?"}], max_tokens=16)
print(answer.choices[0].message.content)
