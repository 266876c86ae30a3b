"""Say whether texts are friendly.

lmi serve --model-dir examples/tasks/classification
python examples/tasks/classification/classify.py "A very good film." "It was not for me."
"""

from __future__ import annotations

import os
import sys

import requests

url = os.environ.get("SERVER_URL", "http://127.0.0.1:8080") + "/invocations"
response = requests.post(url, json={"inputs": sys.argv[1:]}, timeout=240)
response.raise_for_status()
for text, result in zip(sys.argv[1:], response.json(), strict=True):
    print(f"{result['label']} {result['score']:.3f}  {text}")
