"""The notebooks in examples/ run from their first cell to their last, and are kept without outputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT
from serving import ENVIRON, Server

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
PRINTS = {
    "compare_apis": ["Aleph Alpha: POST /complete", '{"completions":', 'OpenAI: data: {"id"', "'The capi'"],
    "getting_started": [
        "'generated_text': 'The capital of F'",
        "T|h|e|",
        "(424, 'parameters.temperature: ",
        "tgi_request",
    ],
    "sagemaker_studio": ["{'generated_text': 'The capital of F'}", "424 ", "parameters.top_p"],
}
"""What occurs in the outputs."""
# nbclient runs in a process of its own, because it needs an event loop and leaves threads behind.
RUN = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
print(nbformat.writes(notebook))
"""


def outputs(notebook: dict[str, Any]) -> str:
    found = []
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            text = output.get("text") or output.get("data", {}).get("text/plain", "")
            found.append("".join(text))
    return "\n".join(found)


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path: Path, echo_server: Server, tmp_path: Path) -> None:
    environ = ENVIRON | {"SERVER_URL": echo_server.url, "HOME": str(tmp_path), "IPYTHONDIR": str(tmp_path / "ipython")}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    command = [sys.executable, "-c", RUN, str(path)]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    printed = outputs(json.loads(done.stdout))
    missing = [text for text in PRINTS[path.stem] if text not in printed]
    assert not missing, printed


def test_they_are_kept_small_and_without_outputs() -> None:
    assert {path.stem for path in NOTEBOOKS} == {*PRINTS}
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text())
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert [cell["outputs"] for cell in code] == [[]] * len(code), f"{path.name} has outputs: clear them"
        assert [cell["execution_count"] for cell in code] == [None] * len(code)
        assert notebook["metadata"]["kernelspec"]["name"] == "python3"
        assert path.stat().st_size < 10_000
