"""`BackendContract` itself: each of its checks can fail, and fails for the defect that it is meant for."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

import pytest
from broken_backends import DEFECTS, Broken
from paths import ROOT, SUPPORT

from lmi_handlers.testing import BackendContract

Failures = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Failures:
    """What each failing check says, by the defect's name."""
    report = tmp_path_factory.mktemp("suite") / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", f"--junitxml={report}"]
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


FOR_GGUF_FILES = """
from lmi_handlers.testing import BackendContract

class TestOpenVino(BackendContract):
    name = "openvino"
    properties = "option.dtype=fp32"
"""


@pytest.mark.model
@pytest.mark.long
def test_a_backend_that_takes_gguf_files_is_checked_with_the_default_model(tmp_path: Path) -> None:
    """Two checks are enough: they are the same for any model."""
    (tmp_path / "test_openvino.py").write_text(FOR_GGUF_FILES)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "declaration or max_tokens"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert re.search(r"^[3-9] passed", done.stdout, re.MULTILINE), done.stdout
