"""Virtual environments for distributions that tests install. Making and filling one needs no network."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from pathlib import Path
from typing import Any

from paths import ROOT


class Environment:
    """A virtual environment with certain distributions. Their dependencies are those of this interpreter."""

    def __init__(self, directory: Path, *distributions: Path) -> None:
        """Make it in `directory`/venv, and install the distributions: wheels, archives or folders of sources."""
        self.bin = directory / "venv" / "bin"
        self.environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory / "venv"], check=True)
        (self.packages,) = (directory / "venv").glob("lib/python*/site-packages")
        (self.packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
        pip = [sys.executable, "-m", "pip", "--python", self.bin / "python", "--disable-pip-version-check", "install"]
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--no-compile"]
        self._run([*pip, *options, *distributions], directory)

    def run(self, command: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return self._run([self.bin / command, *arguments], cwd, check=False)

    def _run(self, command: list[Any], cwd: Path, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=cwd, env=self.environ, capture_output=True, text=True, timeout=240, check=check
        )


def copy_sources(target: Path) -> Path:
    """Copy the repository without what git ignores, because setuptools builds in the folder of the sources."""
    ignored = ("__pycache__", ".git", ".venv", ".*_cache", ".hypothesis", "*.egg-info", "build", "dist")
    return shutil.copytree(ROOT, target, ignore=shutil.ignore_patterns(*ignored))
