"""Servers in containers (`container.py`), started as SageMaker starts them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from container import Spec
from paths import ROOT, SUPPORT
from serving import Server, free_port

DOCKERFILE = (ROOT / "sagemaker" / "Dockerfile").read_text()
MODEL_DIR = "/opt/ml/model"
NOTHING: Mapping[str, Path] = MappingProxyType({})
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/sbin")


class Image:
    """What a container is made of: the `paths` of the folder `root`, the environment and the start of the command."""

    def __init__(self, root: str, paths: tuple[str, ...], environ: dict[str, str], entry_point: str) -> None:
        self.root = root
        self.paths = paths
        self.environ = environ
        self.entry_point = entry_point

    def command(
        self,
        scratch: Path,
        mounts: dict[str, Path],
        *command: str,
        user: int,
        environ: dict[str, str],
        forward: tuple[int, int] = (0, 0),
        tmp: str = "64m",
    ) -> list[str]:
        """Return the command that runs `command` in a container. It needs a `scratch` folder of its own."""
        scratch.mkdir()
        spec = Spec(
            root=self.root,
            paths=[*self.paths],
            mounts={path: str(given) for path, given in mounts.items()},
            scratch=str(scratch),
            tmp=tmp,
            user=user,
            environ=self.environ | environ,
            command=[*command],
            forward=forward,
        )
        return [sys.executable, str(SUPPORT / "container.py"), json.dumps(spec)]

    def serve(
        self,
        directory: Path,
        properties: str,
        mounts: Mapping[str, Path] = NOTHING,
        *,
        user: int,
        port: int = 8080,
        tmp: str = "64m",
        **environ: str,
    ) -> Server:
        """Start a server on the model in `directory`."""
        host_port = free_port()
        command = self.command(
            directory.with_name(f"{directory.name}-root"),
            {MODEL_DIR: directory, **mounts},
            self.entry_point,
            "serve",
            user=user,
            environ=environ,
            forward=(host_port, port),
            tmp=tmp,
        )
        return Server(directory, properties, command=command, port=host_port)

    def run(
        self, scratch: Path, mounts: dict[str, Path], *command: str, user: int = 0, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run `command` to its end."""
        line = self.command(scratch, mounts, *command, user=user, environ=environ)
        return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)


def image_environ() -> dict[str, str]:
    """The variables that the Dockerfile sets."""
    [block] = re.findall(r"^ENV (PATH=(?:.*\\\n)*.*)", DOCKERFILE, re.MULTILINE)
    return dict(pair.split("=", 1) for pair in block.replace("\\\n", " ").split())


def host_image() -> Image:
    """This machine's Python with the packages of the tests, and no other part of it."""
    paths = dict.fromkeys((*SYSTEM, sys.base_prefix, sys.prefix, str(ROOT)))
    environ = image_environ() | {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    return Image("", tuple(paths), environ, f"{sys.prefix}/bin/lmi")


def require_containers(scratch: Path) -> None:
    """Skip the test where the kernel or a sandbox forbids namespaces. On CI it fails instead."""
    done = host_image().run(scratch, {}, "/bin/true", user=1000)
    if done.returncode != 0:
        give_up = pytest.fail if "CI" in os.environ else pytest.skip
        give_up(f"cannot start a container here: {done.stderr.strip().splitlines()[-1]}")
