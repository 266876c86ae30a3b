"""What a client of boto3 sees of the example, also when SageMaker fails."""

from __future__ import annotations

import json
from pathlib import Path

from lmi_handlers.testing import Throttling, endpoint

EXAMPLE = Path(__file__).parents[1]


def test_a_throttled_client_gets_its_answer() -> None:
    with endpoint(EXAMPLE, faults=(Throttling(times=2),)) as sagemaker:
        answer = sagemaker.client.invoke_endpoint(EndpointName=sagemaker.name, Body=b'{"inputs": "hello"}')
        assert json.loads(answer["Body"].read()) == {"generated_text": "HELLO!!!"}
        assert sagemaker.faults == []
