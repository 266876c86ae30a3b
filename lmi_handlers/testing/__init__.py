"""For tests of others. They need `lmi-handlers[testing]`.

`endpoint` starts an endpoint of SageMaker on this machine, for tests of applications that call one. The names beside it
are the faults that it can have:

    from lmi_handlers.testing import Throttling, endpoint

    with endpoint(faults=(Throttling(times=2),)) as sagemaker:
        sagemaker.client.invoke_endpoint(EndpointName=sagemaker.name, Body=b'{"inputs": "hello"}')

The contracts are test suites for distributions that extend the server. Subclass a suite in your own tests, and pytest
collects its checks:

    from lmi_handlers.testing import BackendContract

    class TestMyBackend(BackendContract):
        name = "my_backend"
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    *(f"lmi_handlers.testing.{name}" for name in ("backend_contract", "driver", "formatter_contract"))
)

from lmi_handlers.laptop.sagemaker_runtime.faults import (  # noqa: E402  after the registration
    ContainerError,
    Delay,
    InternalFailure,
    InternalStreamFailure,
    ModelNotReady,
    NoCapacity,
    ServiceUnavailable,
    StreamBroken,
    Throttling,
    TimeLimit,
)
from lmi_handlers.testing.backend_contract import BackendContract  # noqa: E402  after the registration
from lmi_handlers.testing.endpoint import Endpoint, endpoint  # noqa: E402
from lmi_handlers.testing.formatter_contract import FormatterContract  # noqa: E402

__all__ = [
    "BackendContract",
    "ContainerError",
    "Delay",
    "Endpoint",
    "FormatterContract",
    "InternalFailure",
    "InternalStreamFailure",
    "ModelNotReady",
    "NoCapacity",
    "ServiceUnavailable",
    "StreamBroken",
    "Throttling",
    "TimeLimit",
    "endpoint",
]
