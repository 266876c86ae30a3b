"""requests: LMI's dynamic-batch format, which has several prompts in one request.

OPTION_ROLLING_BATCH=disable lmi serve --model-dir examples/tasks/chat
python examples/clients/lmi_dynamic_batch.py
"""

from __future__ import annotations

import os

import requests

url = os.environ.get("SERVER_URL", "http://127.0.0.1:8080") + "/invocations"
prompts = ["The capital of France is", "The three primary colours are"]
response = requests.post(url, json={"inputs": prompts, "parameters": {"max_new_tokens": 8}}, timeout=240)
response.raise_for_status()
for answer in response.json():  # in the order of the prompts, with which the texts begin
    print(answer["generated_text"])
