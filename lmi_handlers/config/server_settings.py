"""Where and how the HTTP server runs. Read from the environment, so `lmi serve` and plain gunicorn agree."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from lmi_handlers.core.errors import ConfigError

SAGEMAKER_MODEL_DIR = Path("/opt/ml/model")
ALL_INTERFACES = "0.0.0.0"
LOOPBACK = "127.0.0.1"

_HOST = re.compile(r"[^\s*\\]+")
_DEFAULT_PORTS = {"http": 80, "https": 443}
"""Browsers leave these out of origins."""


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the HTTP server.

    `local_runtime` adds SageMaker's own runtime API. `split_payload_parts` makes it split streams inside
    records and characters, as AWS may.
    """

    model_dir: Path | None
    host: str = ALL_INTERFACES
    port: int = 8080
    workers: int | None = None
    local_runtime: bool = False
    split_payload_parts: bool = False

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> ServerSettings:
        """Read the settings from environment variables. Raises `ConfigError`.

        SageMaker sets `SAGEMAKER_BIND_TO_PORT` to move a container off port 8080. The local runtime checks no
        signatures, so it listens on loopback only, unless a host is given.
        """
        port = environ.get("LMI_PORT") or environ.get("SAGEMAKER_BIND_TO_PORT") or "8080"
        workers = environ.get("LMI_WORKERS")
        local_runtime = environ.get("LMI_LOCAL_RUNTIME") == "true"
        return cls(
            model_dir=find_model_dir(environ.get("LMI_MODEL_DIR")),
            host=_unbracketed(environ.get("LMI_HOST") or (LOOPBACK if local_runtime else ALL_INTERFACES)),
            port=_integer("LMI_PORT or SAGEMAKER_BIND_TO_PORT", port, 65535),
            workers=None if workers is None else _integer("LMI_WORKERS", workers, 256),
            local_runtime=local_runtime,
            split_payload_parts=environ.get("LMI_SPLIT_PAYLOAD_PARTS") == "true",
        )


def find_model_dir(given: str | None) -> Path | None:
    """Return `given`, SageMaker's directory, or this one if it has a serving.properties. Raises `ConfigError`."""
    if given is not None:
        path = Path(given)
        if not path.is_dir():
            raise ConfigError(f"--model-dir (LMI_MODEL_DIR) {given!r} is not a directory")
        return path.resolve()
    if SAGEMAKER_MODEL_DIR.is_dir():
        return SAGEMAKER_MODEL_DIR
    here = Path.cwd()
    return here if (here / "serving.properties").is_file() else None


def default_workers(cores: int | None = None) -> int:
    """Return the default number of web workers. It is small, because the model needs the cores more."""
    return max(1, min(4, (cores or os.cpu_count() or 1) // 4))


def is_loopback(name: str) -> bool:
    """Tell whether a host name or address can only mean this machine."""
    address = ip_address(name)
    return name == "localhost" or name.endswith(".localhost") or (address is not None and address.is_loopback)


@functools.lru_cache(maxsize=64)  # every request to a loopback server names its host
def ip_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address if `name` is an IP address, None if it is a host name."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def netloc(host: str, port: int) -> str:
    """Return `host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_origins(text: str) -> frozenset[str]:
    """Return the origins in `cors_allowed_origin`, in the form that browsers send. Raises `ConfigError`."""
    return frozenset(_origin(item.strip()) for item in text.split(",") if item.strip())


def _origin(text: str) -> str:
    plain = text.lower().rstrip("/")
    if plain in ("*", "null"):
        return plain
    with contextlib.suppress(ValueError):
        parts = urlsplit(plain)
        host, port = parts.hostname or "", parts.port
        if (
            parts.scheme
            and _HOST.fullmatch(host)
            and parts.username is None
            and plain == f"{parts.scheme}://{parts.netloc}"
        ):
            if port is None or port == _DEFAULT_PORTS.get(parts.scheme):
                return f"{parts.scheme}://{host if ':' not in host else f'[{host}]'}"
            return f"{parts.scheme}://{netloc(host, port)}"
    raise ConfigError(f"cors_allowed_origin has value {text!r}: an origin must be scheme://host[:port], null or *")


def _unbracketed(host: str) -> str:
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _integer(name: str, text: str, high: int) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= high):
        raise ConfigError(f"{name} has value {text!r}: must be an integer from 1 to {high}")
    return int(text)
