"""Settings of the HTTP server. Read from the environment, so `lmi serve` and plain gunicorn agree."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from lmi_handlers.config.container import in_container
from lmi_handlers.config.environment import Variable, declared_variables, read_values
from lmi_handlers.config.local_runtime import LocalRuntimeSettings
from lmi_handlers.config.option import InvalidValue
from lmi_handlers.config.process_settings import ProcessSettings
from lmi_handlers.config.store_settings import StoreSettings
from lmi_handlers.core.errors import ConfigError

SAGEMAKER_MODEL_DIR = Path("/opt/ml/model")
ALL_INTERFACES = "0.0.0.0"
LOOPBACK = "127.0.0.1"

FRONT_HOST_VARIABLE = "LMI_FRONT_HOST"
"""Set by what passes requests on to a server that listens on a Unix socket: the address on which it listens itself."""

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
WorkerCount = Annotated[int, msgspec.Meta(ge=1, le=256)]

_OF_MODELS = ("serving.properties", "config.json", "*.gguf")
_HOST = re.compile(r"[^\s*\\]+")
_DEFAULT_PORTS = {"http": 80, "https": 443}
"""Browsers leave these out of origins."""


def _ports(text: str) -> tuple[int, int]:
    """Return the first and the last port of a range. Raises `InvalidValue`."""
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text.strip(), re.ASCII)
    if found is None or not 1 <= int(found[1]) <= int(found[2]) <= 65535:
        raise InvalidValue("must be two ports, such as 9000-9100")
    return int(found[1]), int(found[2])


def _unbracketed(host: str) -> str:
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the HTTP server. With `store`, several models are served, and not the one in `model_dir`."""

    model_dir: Annotated[
        Path | None,
        Variable(
            "LMI_MODEL_DIR",
            "Model directory, with serving.properties. Defaults to /opt/ml/model if it exists, or to the current directory "
            "if it contains that file.",
            aliases=("SAGEMAKER_MODEL_PATH",),
            flag="--model-dir",
            metavar="PATH",
            read=Path,
        ),
    ]
    store: StoreSettings | None = None
    host: Annotated[
        str,
        Variable(
            "LMI_HOST",
            "Address to listen on. Defaults to 127.0.0.1, which only this machine reaches; in a container to 0.0.0.0, "
            "unless --local-runtime is given.",
            flag="--host",
            read=_unbracketed,
        ),
    ] = ""
    port: Annotated[
        Port,
        Variable(
            "LMI_PORT",
            "Port to listen on. Defaults to SAGEMAKER_BIND_TO_PORT, or to 8080.",
            aliases=("SAGEMAKER_BIND_TO_PORT",),
            flag="--port",
        ),
    ] = 8080
    safe_ports: Annotated[
        tuple[int, int] | None,
        Variable(
            "SAGEMAKER_SAFE_PORT_RANGE",
            "Other ports that are free, such as 9000-9100. vLLM's own processes connect to each other on the first ones.",
            read=_ports,
        ),
    ] = None
    workers: Annotated[
        WorkerCount | None,
        Variable(
            "LMI_WORKERS",
            "Number of web worker processes. Defaults to a number that depends on the CPU cores.",
            flag="--workers",
        ),
    ] = None
    api_key_file: Annotated[
        Path | None,
        Variable(
            "LMI_API_KEY_FILE",
            "Clients need one of the keys in this file, which has a label and a key per line and is read again when it "
            "changes ([operating.md](operating.md#api-keys)).",
            flag="--api-key-file",
            metavar="FILE",
            read=Path,
        ),
    ] = None
    local_runtime: LocalRuntimeSettings = LocalRuntimeSettings()
    reload: Annotated[
        bool,
        Variable(
            "LMI_RELOAD",
            "For development: load the model's own code again whenever a .py file in its folder changes.",
            flag="--reload",
        ),
    ] = False

    process: ProcessSettings = ProcessSettings()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> ServerSettings:
        """Read the settings from environment variables. Raises `ConfigError`.

        Unless a host is given, only this machine can connect. A container listens on all interfaces, except with the local
        runtime, which is for one machine.
        """
        process = ProcessSettings(**read_values(ProcessSettings, environ))
        values = read_values(cls, environ) | {"process": process}
        local_runtime = LocalRuntimeSettings.from_environ(environ)
        named, text = declared_variables(cls)["model_dir"].given(environ) or ("", None)
        model_dir = find_model_dir(text) if named == "LMI_MODEL_DIR" else find_model_dir(None, text)
        store = StoreSettings.from_environ(environ, model_dir)
        if store is not None and store.management is not None and store.management[1] == values["port"]:
            raise ConfigError(f"LMI_MANAGEMENT_ADDRESS must have a port of its own: {values['port']} is the server's")
        host = values["host"] or (LOOPBACK if local_runtime.enabled else default_host(environ))
        return cls(**values | {"model_dir": model_dir, "host": host, "store": store, "local_runtime": local_runtime})


def behind_loopback(environ: Mapping[str, str]) -> bool:
    """Tell whether only this machine reaches what passes requests on to this server, which listens on a Unix socket."""
    return is_loopback(environ.get(FRONT_HOST_VARIABLE, ""))


def default_host(environ: Mapping[str, str]) -> str:
    """Return the address to listen on if none is given."""
    return ALL_INTERFACES if in_container(environ) else LOOPBACK


def find_model_dir(given: str | None, mounted: str | None = None) -> Path | None:
    """Return the directory with the model and its serving.properties. Raises `ConfigError` for a path that is none.

    It is `given`; or SageMaker's directory, which `mounted` may have moved; or this one if it has a serving.properties.
    """
    if given is not None:
        path = Path(given)
        if not path.is_dir():
            raise ConfigError(f"--model-dir (LMI_MODEL_DIR) {given!r} is not a directory")
        return _without_folder_of_archive(path.resolve())
    path = Path(mounted) if mounted else SAGEMAKER_MODEL_DIR
    if path.is_dir():
        return _without_folder_of_archive(path)
    if mounted or path.exists():
        name = f"SAGEMAKER_MODEL_PATH {mounted!r}" if mounted else str(path)
        raise ConfigError(
            f"{name} is not a directory: a model is a folder of files, or an archive that SageMaker unpacks"
        )
    here = Path.cwd()
    return here if (here / "serving.properties").is_file() else None


def _without_folder_of_archive(path: Path) -> Path:
    """Return the only entry of `path` if it is a folder with a model or a serving.properties, else `path`.

    `tar czf model.tar.gz my-model` makes such an archive.
    """
    try:
        entries = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
    except OSError:  # reported by whoever reads the files
        return path
    if len(entries) == 1 and entries[0].is_dir() and any(next(entries[0].glob(name), None) for name in _OF_MODELS):
        return entries[0]
    return path


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
