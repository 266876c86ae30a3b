"""Does this process run in a container? There, loopback is of no use: whoever publishes a port decides who reaches it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_MARKS = (".dockerenv", "run/.containerenv")
"""Docker's and Podman's."""

_VARIABLES = (
    "KUBERNETES_SERVICE_HOST",
    "ECS_CONTAINER_METADATA_URI_V4",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",  # SageMaker and ECS
    "SAGEMAKER_BIND_TO_PORT",
    "SAGEMAKER_SAFE_PORT_RANGE",
    "container",  # systemd's convention, which Podman and LXC follow
)
"""None is a setting of ours that somebody may use, or turn off, on a laptop."""

_CONTROL_GROUP = re.compile(r"docker|kubepods|containerd|crio|libpod|lxc|/ecs/")


def in_container(environ: Mapping[str, str], root: Path = Path("/")) -> bool:
    """Tell whether this process runs in a container, SageMaker's or any. `root` is the file system's."""
    if any(environ.get(name) for name in _VARIABLES) or any((root / mark).exists() for mark in _MARKS):
        return True
    if (root / "opt/ml/model").is_dir():  # SageMaker mounts it
        return True
    try:
        return _CONTROL_GROUP.search((root / "proc/1/cgroup").read_text(errors="replace")) is not None
    except OSError:  # not Linux, or not ours to read
        return False
