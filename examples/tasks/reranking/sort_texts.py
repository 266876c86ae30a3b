"""Sort texts by how well they answer a question.

lmi serve --model-dir examples/tasks/reranking
python examples/tasks/reranking/sort_texts.py "Where do cats sleep?" "Bread is baked." "Cats sleep on sofas."
"""

from __future__ import annotations

import os
import sys

import requests

url = os.environ.get("SERVER_URL", "http://127.0.0.1:8080") + "/rerank"
query, *texts = sys.argv[1:]
response = requests.post(url, json={"query": query, "texts": texts}, timeout=240)
response.raise_for_status()
for result in response.json():
    print(f"{result['score']:.3f}  {texts[result['index']]}")
