"""Test suites for distributions that extend the server. They need `lmi-handlers[testing]`.

Subclass a suite in your own tests, and pytest collects its checks:

    from lmi_handlers.testing import BackendContract

    class TestMyBackend(BackendContract):
        name = "my_backend"
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("lmi_handlers.testing.backend_contract", "lmi_handlers.testing.driver")

from lmi_handlers.testing.backend_contract import BackendContract  # noqa: E402  once its asserts are rewritten

__all__ = ["BackendContract"]
