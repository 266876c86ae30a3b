"""Find the text that is closest to a question.

lmi serve --model-dir examples/tasks/embeddings
python examples/tasks/embeddings/find_text.py "Where do cats sleep?" "Cats sleep on sofas." "Bread is baked."
"""

from __future__ import annotations

import os
import sys

import requests

url = os.environ.get("SERVER_URL", "http://127.0.0.1:8080") + "/v1/embeddings"
response = requests.post(url, json={"input": sys.argv[1:]}, timeout=240)
response.raise_for_status()
question, *texts = (item["embedding"] for item in response.json()["data"])

# The cosine, because the vectors have length 1
scores = [sum(a * b for a, b in zip(question, vector, strict=True)) for vector in texts]
for score, text in sorted(zip(scores, sys.argv[2:], strict=True), reverse=True):
    print(f"{score:.3f}  {text}")
