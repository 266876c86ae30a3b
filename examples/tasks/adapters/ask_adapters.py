"""Ask the model, and then each of its adapters.

    lmi serve --model-dir examples/tasks/adapters
    python examples/tasks/adapters/ask_adapters.py "The meaning of life is"

Put an adapter into `examples/tasks/adapters/adapters/<name>/` first: `adapter_config.json` and
`adapter_model.safetensors`, as peft's `save_pretrained` writes them.
"""

from __future__ import annotations

import os
import sys

import requests

url = os.environ.get("SERVER_URL", "http://127.0.0.1:8080")
loaded = requests.get(f"{url}/adapters", timeout=60).json()["adapters"]
for name in ["", *(adapter["name"] for adapter in loaded)]:
    body = {"inputs": sys.argv[1], "parameters": {"max_new_tokens": 16}} | ({"adapters": name} if name else {})
    response = requests.post(f"{url}/invocations", json=body, timeout=240)
    response.raise_for_status()
    print(f"{name or 'model'}: {response.json()['generated_text']!r}")
