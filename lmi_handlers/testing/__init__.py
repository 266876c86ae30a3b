"""Test suites for distributions that extend the server. They need `lmi-handlers[testing]`.

Subclass a suite in your own tests, and pytest collects its checks:

    from lmi_handlers.testing import BackendContract

    class TestMyBackend(BackendContract):
        name = "my_backend"
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    *(f"lmi_handlers.testing.{name}" for name in ("backend_contract", "driver", "formatter_contract"))
)

from lmi_handlers.testing.backend_contract import BackendContract  # noqa: E402  after the registration
from lmi_handlers.testing.formatter_contract import FormatterContract  # noqa: E402

__all__ = ["BackendContract", "FormatterContract"]
