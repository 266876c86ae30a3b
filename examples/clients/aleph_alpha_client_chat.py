"""aleph-alpha-client: a text completion and a chat on Aleph Alpha's routes.

lmi serve --model-dir examples/tasks/chat
python examples/clients/aleph_alpha_client_chat.py
"""

from __future__ import annotations

import os

from aleph_alpha_client import Client, CompletionRequest, Prompt
from aleph_alpha_client.chat import ChatRequest, Message, Role

client = Client(token="none", host=os.environ.get("SERVER_URL", "http://127.0.0.1:8080"))  # noqa: S106  not a secret

completion = CompletionRequest(Prompt.from_text("The capital of France is"), maximum_tokens=8)
print(client.complete(completion, model="any").completions[0].completion)

chat = ChatRequest(
    model="any", messages=[Message(role=Role.User, content="What is the capital of Japan?")], maximum_tokens=8
)
print(client.chat(chat, model="any").message.content)
