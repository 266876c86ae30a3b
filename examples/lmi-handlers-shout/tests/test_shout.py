"""The suites have the checks that every backend and every formatter must pass. The rest is the example's own."""

from __future__ import annotations

import json

from lmi_handlers.testing import BackendContract, FormatterContract
from lmi_handlers.testing.driver import Driver, tokens


class TestBackend(BackendContract):
    name = "shout"
    properties = "option.shout_marks=2"

    def test_marks(self, driver: Driver) -> None:
        outputs = driver.generate([*b"hey"], ignore_eos=False)
        assert bytes(tokens(outputs)[:-1]) == b"HEY!!"


class TestLines(FormatterContract):
    name = "shout_lines"

    def text(self, data: bytes) -> str:
        return "".join(json.loads(line)["text"] for line in data.splitlines())
