"""Converts a folder of safetensors to OpenVINO's format once, in a child process."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from lmi_handlers.core.errors import ConfigError, UnsupportedModel

_NEEDED = ("torch", "transformers")


class Job(msgspec.Struct, frozen=True):
    """What the child does: convert the checkpoint in `path` into `folder`, which exists."""

    path: str
    folder: str
    trust_remote_code: bool


def convert_checkpoint(path: Path, folder: Path, report: Callable[[str], None], *, trust_remote_code: bool) -> None:
    """Write the model in `path` into `folder`, which exists, as openvino_model.xml and .bin.

    The child's torch, and twice the model's memory, are gone when it ends. `report` is called with short phases.
    Raises `ConfigError` if a library is missing, or `UnsupportedModel`.
    """
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise ConfigError(
            f"option.model_id: converting {path} for openvino needs {' and '.join(missing)}, once; "
            "pip install 'lmi-handlers[transformers]'"
        )
    report(f"converting {path.name}")
    job = Job(str(path), str(folder), trust_remote_code)
    line = ""
    with subprocess.Popen(
        [sys.executable, "-m", "backends.openvino.tracing"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None and child.stdout is not None  # noqa: S101, PT018 (for mypy)
        child.stdin.write(msgspec.json.encode(job))
        child.stdin.close()
        for encoded in child.stdout:
            line = encoded.decode().strip()
            report(f"converting {path.name}: {line}")
    if child.returncode != 0:
        reason = f"signal {-child.returncode}" if child.returncode < 0 else line
        raise UnsupportedModel(f"option.model_id: {path} cannot be converted for openvino: {reason}")


def context_length(path: Path) -> int | None:
    """Return the maximum number of tokens that config.json in `path` states, or None."""
    config: dict[str, Any] = json.loads((path / "config.json").read_bytes())
    return config.get("max_position_embeddings")
