"""`BackendContract` itself: each of its checks can fail, and fails for the defect that it is meant for."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict

import pytest
from broken_backends import DEFECTS, Broken
from paths import ROOT, SUPPORT

from lmi_handlers.testing import BackendContract

Failures = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    """What each failing check says, by the defect's name."""
    report = tmp_path_factory.mktemp("suite") / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    subprocess.run([*command, str(SUPPORT / "broken_contract.py")], cwd=ROOT, capture_output=True, check=False)
    found: Failures = defaultdict(dict)
    for case in ElementTree.parse(report).iter("testcase"):
        defect = case.attrib["classname"].rpartition(".Test")[2]
        check = case.attrib["name"].partition("[")[0]
        for failure in (*case.iter("failure"), *case.iter("error")):
            found[defect].setdefault(check, "")
            found[defect][check] += f"{failure.attrib['message']}\n{failure.text}"
    return found


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda kind: kind.__name__)
def test_defect_is_found_by_its_check(failures: Failures, defect: type[Broken]) -> None:
    found = failures[defect.__name__]
    assert defect.message in found[defect.found_by]
    if defect.also is not None:
        assert found.keys() == {defect.found_by, *defect.also}


def test_each_check_finds_a_defect() -> None:
    checks = {name for name in vars(BackendContract) if name.startswith("test_")}
    assert checks == {defect.found_by for defect in DEFECTS}
