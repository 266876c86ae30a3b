"""`BackendContract` on each broken backend. Run as a pytest file by tests/backends/test_contract_suite.py."""

from __future__ import annotations

from typing import ClassVar

from broken_backends import DEFECTS, Broken
from hypothesis import Phase, settings

# The suite takes its settings from the profile that is loaded when it is imported.
settings.register_profile("without shrinking", phases=[Phase.generate])
settings.load_profile("without shrinking")

from backends.base import Backend  # noqa: E402
from lmi_handlers.testing import BackendContract  # noqa: E402


class BrokenContract(BackendContract):
    name = "echo"
    patience = 0.2
    defect: ClassVar[type[Broken]]

    @classmethod
    def backend_class(cls) -> type[Backend]:
        return cls.defect


RANDOM = "test_joining_and_leaving_changes_no_other_sequence"
"""This check finds most defects in a batch, but not with every schedule. It only runs for the one that it must find."""

for kind in DEFECTS:
    checks = {"defect": kind} | ({} if kind.found_by == RANDOM else {RANDOM: None})
    globals()[f"Test{kind.__name__}"] = type(f"Test{kind.__name__}", (BrokenContract,), checks)
