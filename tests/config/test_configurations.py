"""Configurations as users of LMI have them: docs/configurations.md has what becomes of each."""

from __future__ import annotations

import os

import pytest
from configurations_page import configurations_page
from paths import ROOT

from lmi_handlers.workers.environment import withheld_from_code


def test_configurations_md_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    for name in withheld_from_code(os.environ):  # a warning says so
        monkeypatch.delenv(name)
    page = (ROOT / "docs" / "configurations.md").read_text()
    assert page == configurations_page(), "run: python docs/site/configurations_page.py > docs/configurations.md"
