"""A release: its version, what the changelog says of it, and the distributions that are built of it."""

from __future__ import annotations

import re
from datetime import date

from packaging.version import Version
from paths import ROOT

from lmi_handlers import __version__


def test_the_changelog_has_this_version_below_what_is_not_released() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    released = [re.fullmatch(r"\[([\d.]+)\] - (\d{4}-\d\d-\d\d)", heading) for heading in headings[1:]]
    assert None not in released
    versions = [(Version(found[1]), date.fromisoformat(found[2])) for found in released if found]
    assert versions == sorted(versions, reverse=True)
    assert versions[0][0] == Version(__version__)
