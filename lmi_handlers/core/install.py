"""Says how to install what is missing. No package index has this server, so the command does not look for it there."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from lmi_handlers.core.errors import ConfigError

_DISTRIBUTION = "lmi-handlers"
_ROOT = Path(__file__).resolve().parent.parent.parent


def check_installed(package: str, *, extra: str, needed_by: str = "this command") -> None:
    """Raise `ConfigError` if a package is missing. It says who needs it, and how to install the server's `extra` with it."""
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"{needed_by} needs {package}: {install_command(f'{_DISTRIBUTION}[{extra}]')}")


def install_command(requirement: str) -> str:
    """Return the command that installs a requirement beside this server.

    An extra of the server, such as `lmi-handlers[aws]`, is installed from the clone that runs, and otherwise by the
    requirements that the extra stands for.
    """
    from packaging.requirements import Requirement  # rarely needed: it would make each process start 0.04 s later

    wanted = Requirement(requirement)
    if wanted.name != _DISTRIBUTION:
        arguments = [requirement]
    elif (_ROOT / "pyproject.toml").is_file():
        clone = "." if Path.cwd() == _ROOT else str(_ROOT)
        arguments = ["-e", f"{clone}[{','.join(sorted(wanted.extras))}]"]
    else:
        arguments = list(_requirements(wanted.extras))
    return f"{_pip()} install {shlex.join(arguments)}"


def _requirements(extras: Iterable[str]) -> Iterator[str]:
    """Yield what the extras bring to this interpreter, as pip takes it."""
    from packaging.requirements import Requirement

    for line in importlib.metadata.requires(_DISTRIBUTION) or ():
        item = Requirement(line)
        marker, item.marker = item.marker, None
        if marker and not marker.evaluate({"extra": ""}) and any(marker.evaluate({"extra": name}) for name in extras):
            yield str(item)


def _pip() -> str:
    """The command `pip` belongs to this interpreter only if its virtual environment has been activated."""
    ours = Path(sys.executable)
    found = shutil.which("pip")
    if found and Path(found).parent == ours.parent:
        return "pip"
    program = ours.relative_to(Path.cwd()) if ours.is_relative_to(Path.cwd()) else ours
    return f"{shlex.quote(str(program))} -m pip"
