"""Where tests find files."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent.parent
ROOT = TESTS.parent
SUPPORT = TESTS / "support"
DATA = TESTS / "data"
RECORDINGS = ROOT / "lmi_handlers" / "tools" / "conform" / "vectors"
"""Requests and recorded answers, which `lmi conform` sends and compares too."""
