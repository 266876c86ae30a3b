"""Installs the requirements.txt that comes with a model's code, into a folder of its own in the cache.

pip runs in a virtual environment that sees the server's packages but cannot change them. It installs what is missing
there. Only this module installs packages.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import logging
import os
import subprocess
import sys
import sysconfig
import venv
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.core.convert_once import convert_once
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.workers.environment import child_environment
from lmi_handlers.workers.process import describe

_PACKAGES = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
_WHEELS = "requirements"
_PIP = ("-I", "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar", "off")
_ELSEWHERE = ("PIP_PREFIX", "PIP_ROOT", "PIP_TARGET", "PIP_USER")
"""Variables with which pip would install into another place."""

_SHOWN = 5
"""Lines of pip's output in the error message."""

logger = logging.getLogger(__name__)


def with_packages(code: CustomCode, cache_dir: Path, report: Callable[[str], None]) -> CustomCode:
    """Return the code with the folder of its packages, after installing them if they are not there yet.

    Two servers that start at once install them once. Sets no time limit: the supervisor's includes the whole load.
    Raises `ConfigError` if they cannot be installed, or if the server has other versions of some.
    """
    if code.requirements is None:
        return code
    file = Path(code.requirements)
    folder = cache_dir / f"requirements-{_digest(file)}"
    convert_once(folder, functools.partial(_install, file), report)
    return msgspec.structs.replace(code, packages=str(folder / _PACKAGES))


def _digest(file: Path) -> str:
    """Return what the installed packages depend on: the files, the wheels, Python, and the server's own packages."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {sysconfig.get_platform()}".encode())
    for name in sorted(f"{item.name}=={item.version}" for item in importlib.metadata.distributions()):
        digest.update(name.encode() + b"\0")
    included = sorted({file, *file.parent.glob("*requirements*.txt"), *file.parent.glob("*constraints*.txt")})
    wheels = sorted(wheel for wheel in (file.parent / _WHEELS).glob("*") if wheel.is_file())
    for path in (*included, *wheels):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _install(file: Path, folder: Path) -> None:
    """Install into a virtual environment in `folder`, from the wheels alone if that is possible. Raises `ConfigError`."""
    venv.EnvBuilder(symlinks=True).create(folder)
    ours = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (folder / _PACKAGES / "server.pth").write_text("\n".join(ours))
    arguments = ["--requirement", str(file)]
    status, output = 1, [""]
    if (wheels := file.parent / _WHEELS).is_dir():
        arguments += ["--find-links", str(wheels)]
        status, _ = _run_pip(folder, file, "--no-index", *arguments)
    if status != 0:
        status, output = _run_pip(folder, file, *arguments)
    if status != 0:
        raise ConfigError(f"{file} cannot be installed: pip ended with {describe(status)}: {'; '.join(output)}")
    _check_versions(file, folder / _PACKAGES)


def _run_pip(folder: Path, file: Path, *arguments: str) -> tuple[int, list[str]]:
    """Run pip and log its output. Returns its exit status and the last lines."""
    given = child_environment(os.environ)  # a package's setup.py is code, too
    environ = {name: value for name, value in given.items() if name not in _ELSEWHERE}
    last: deque[str] = deque(maxlen=_SHOWN)
    # pip stays in this process group, so it is killed together with it.
    with subprocess.Popen(
        [str(folder / "bin" / "python"), *_PIP, *arguments],
        cwd=file.parent,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as pip:
        assert pip.stdout is not None  # noqa: S101  follows from stdout=PIPE
        for line in filter(None, map(str.strip, pip.stdout)):
            logger.info("pip", extra={"output": line})
            last.append(line)
    return pip.returncode, list(last)


def _check_versions(file: Path, packages: Path) -> None:
    """Raise `ConfigError` if a package was installed that the server has in another version, which would be imported."""
    for item in importlib.metadata.distributions(path=[str(packages)]):
        try:
            ours = importlib.metadata.version(item.name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if ours != item.version:
            raise ConfigError(
                f"{file} needs {item.name} {item.version}, but the server has {ours}, which takes precedence: allow that "
                "version, or install another one in the image"
            )
