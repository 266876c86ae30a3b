"""Converts a folder of safetensors to OpenVINO's format once, in a child process."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from lmi_handlers.core.errors import ConfigError, ConversionRefused, LMIError, LoadFailed, UnsupportedModel
from lmi_handlers.core.install import install_command
from lmi_handlers.workers.environment import child_environment
from lmi_handlers.workers.process import KeptProcess, describe

_NEEDED = ("torch", "transformers")

REFUSED, UNAVAILABLE, FAILED = os.EX_DATAERR, os.EX_UNAVAILABLE, os.EX_TEMPFAIL
"""Exit statuses of the child, which has written the cause: the model cannot be converted, a library or a file is
missing, or another try may succeed."""

_VERDICTS: Mapping[int, type[LMIError]] = {
    REFUSED: ConversionRefused,
    UNAVAILABLE: UnsupportedModel,
    FAILED: LoadFailed,
    # Crashes, which would happen again. Other signals come from outside, or for lack of memory.
    **dict.fromkeys((-signal.SIGSEGV, -signal.SIGILL, -signal.SIGFPE), ConversionRefused),
}


class Conversion(msgspec.Struct, frozen=True):
    """The child's work: convert the checkpoint in `path` into `folder`, which exists."""

    path: str
    folder: str
    trust_remote_code: bool


def converter(*, trust_remote_code: bool) -> str:
    """Name everything besides the checkpoint that decides whether `convert_checkpoint` can convert it."""
    versions = [f"{name} {version(name)}" for name in _NEEDED if importlib.util.find_spec(name) is not None]
    return ", ".join([*versions, f"trust_remote_code={trust_remote_code}"])


def convert_checkpoint(path: Path, folder: Path, report: Callable[[str], None], *, trust_remote_code: bool) -> None:
    """Write the model in `path` into `folder`, which exists, as openvino_model.xml and .bin.

    The child's torch, and twice the model's memory, are gone when it ends. `report` is called with short phases.
    Raises `ConfigError` if a library is missing, `LoadFailed` if another try may help (the child was killed, or ran out
    of memory), `ConversionRefused` if it cannot, or `UnsupportedModel`.
    """
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise ConfigError(
            f"option.model_id: converting {path} for openvino needs {' and '.join(missing)}, once; "
            f"{install_command('lmi-handlers[transformers]')}"
        )
    report(f"converting {path.name}")
    line = ""
    with (
        tempfile.TemporaryFile() as errors,
        KeptProcess(
            "backends.openvino.tracing",
            settings=Conversion(str(path), str(folder), trust_remote_code),
            environ=child_environment(os.environ),
            group=False,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as child,
    ):
        assert child.stdout is not None  # noqa: S101 (for mypy)
        for encoded in child.stdout:
            line = encoded.decode().strip()
            report(f"converting {path.name}: {line}")
        status = child.wait()
        errors.seek(0)
        written = errors.read().decode(errors="replace").strip()
    if status == 0:
        return
    reason = line if status in (REFUSED, UNAVAILABLE, FAILED) else _how_it_ended(status, written)
    verdict = _VERDICTS.get(status, LoadFailed if status < 0 else UnsupportedModel)
    raise verdict(f"option.model_id: {path} cannot be converted for openvino: {reason}")


def _how_it_ended(status: int, written: str) -> str:
    """Say how a child ended that did not say so itself. `written` is what it wrote to standard error."""
    words = describe(status)
    if status == -signal.SIGKILL:
        words += ", perhaps because memory ran out"
    return ": ".join(filter(None, [f"the conversion ended with {words}", written.rpartition("\n")[2]]))


def context_length(path: Path) -> int | None:
    """Return the maximum number of tokens that config.json in `path` states, or None."""
    config: dict[str, Any] = json.loads((path / "config.json").read_bytes())
    return config.get("max_position_embeddings")
