"""Find the text that is closest to a question.

    lmi serve --model-dir examples/tasks/embeddings
    python examples/tasks/embeddings/ask.py "Where do cats sleep?" "Cats sleep on sofas." "Bread is baked."
"""

from __future__ import annotations

import os
import sys

import requests

url = os.environ.get("SERVER_URL", "http://127.0.0.1:8080") + "/v1/embeddings"
response = requests.post(url, json={"input": sys.argv[1:]}, timeout=240)
response.raise_for_status()
question, *texts = (item["embedding"] for item in response.json()["data"])


def similarity(vector: list[float]) -> float:
    """Return the cosine: the vectors have length 1."""
    return sum(a * b for a, b in zip(question, vector, strict=True))


for score, text in sorted(zip(map(similarity, texts), sys.argv[2:], strict=True), reverse=True):
    print(f"{score:.3f}  {text}")
