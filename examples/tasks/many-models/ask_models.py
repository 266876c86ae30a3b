"""Ask each model of a store, put one to sleep, and wake it with a request.

lmi serve --model-store examples/tasks/many-models
python examples/tasks/many-models/ask_models.py "What is Deep Learning?"
"""

from __future__ import annotations

import os
import sys

import requests

url = os.environ.get("SERVER_URL", "http://127.0.0.1:8080")


def ask(model: str) -> None:
    """Print a model's answer."""
    response = requests.post(f"{url}/predictions/{model}", json={"inputs": sys.argv[1]}, timeout=240)
    response.raise_for_status()
    print(f"{model}: {response.json()['generated_text']}")


for name in ("small", "large"):
    ask(name)
requests.put(f"{url}/models/large?min_worker=0", timeout=60).raise_for_status()
print(requests.get(f"{url}/ping", timeout=60).json())
ask("large")  # wakes it
