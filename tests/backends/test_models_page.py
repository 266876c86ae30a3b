"""docs/models.md lists what the backends declare and what the tests compare."""

from __future__ import annotations

from models_page import models_page
from paths import ROOT

from backends.openvino import DECLARATION


def test_models_md_is_up_to_date() -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    assert page == models_page(), "run: python tests/support/models_page.py > docs/models.md"
    assert page.count("| yes |") == len(DECLARATION.architectures)
