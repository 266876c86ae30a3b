"""openai: a chat, first the whole answer, then as a stream.

lmi serve --model-dir examples/tasks/chat
python examples/clients/openai_chat.py
"""

from __future__ import annotations

import os

import openai

client = openai.OpenAI(base_url=os.environ.get("SERVER_URL", "http://127.0.0.1:8080") + "/v1", api_key="-")
messages = [{"role": "user", "content": "What is the capital of Japan?"}]

answer = client.chat.completions.create(model="any", messages=messages, max_tokens=32, temperature=0)
print(answer.choices[0].message.content)

messages += [{"role": "assistant", "content": answer.choices[0].message.content}]
messages += [{"role": "user", "content": "And of China?"}]
chunks = client.chat.completions.create(
    model="any", messages=messages, max_tokens=32, temperature=0, stream=True, stream_options={"include_usage": True}
)
for chunk in chunks:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage:
        print(f"\n{chunk.usage.prompt_tokens} tokens asked, {chunk.usage.completion_tokens} answered")
