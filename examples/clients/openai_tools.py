"""openai: the model calls a function, and its result goes back into the conversation.

lmi serve --model-dir examples/tasks/tool-use
python examples/clients/openai_tools.py
"""

from __future__ import annotations

import json
import os

import openai

client = openai.OpenAI(base_url=os.environ.get("SERVER_URL", "http://127.0.0.1:8080") + "/v1", api_key="-")
tool = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
messages = [{"role": "user", "content": "What is the weather in Paris?"}]

# Naming the tool restricts the answer to a call with valid arguments. With "auto", the model decides.
choice = {"type": "function", "function": {"name": "get_weather"}}
answer = client.chat.completions.create(model="any", messages=messages, tools=[tool], tool_choice=choice, max_tokens=64)
call = answer.choices[0].message.tool_calls[0]
city = json.loads(call.function.arguments)["city"]
print(f"{call.function.name}({city})")

messages += [answer.choices[0].message.model_dump(exclude_none=True)]
messages += [{"role": "tool", "tool_call_id": call.id, "content": json.dumps({"city": city, "celsius": 21})}]
answer = client.chat.completions.create(model="any", messages=messages, tools=[tool], tool_choice="none", max_tokens=32)
print(answer.choices[0].message.content)
