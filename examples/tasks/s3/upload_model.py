"""Upload a model directory to S3. Then serve it from there, with credentials from boto3's usual places.

python examples/tasks/s3/upload_model.py ./my-model my-bucket models/llama/
lmi serve --model-dir examples/tasks/s3
python examples/tasks/chat/ask_chat.py "What is the capital of Japan?"
"""

from __future__ import annotations

import sys
from pathlib import Path

import boto3

folder, bucket, prefix = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
client = boto3.client("s3")
for path in sorted(folder.rglob("*")):
    if path.is_file():
        key = prefix + path.relative_to(folder).as_posix()
        client.upload_file(str(path), bucket, key, ExtraArgs={"ChecksumAlgorithm": "SHA256"})
        print(f"s3://{bucket}/{key}")
