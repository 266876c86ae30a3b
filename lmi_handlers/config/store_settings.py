"""Which models a server with several models serves. Read from the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from lmi_handlers.config.environment import integer, switch
from lmi_handlers.core.errors import ConfigError

MULTI_MODEL_DIR = Path("/opt/ml/models")
"""Where SageMaker puts the models of a multi-model endpoint."""

VARIABLES = (
    "LMI_MODEL_STORE",
    "SERVING_MODEL_STORE",
    "SERVING_LOAD_MODELS",
    "SAGEMAKER_MULTI_MODEL",
    "LMI_DEFAULT_MODEL",
    "LMI_MAX_LOADED_MODELS",
    "LMI_MODEL_SOURCES",
    "LMI_MANAGEMENT_ADDRESS",
    "SERVING_MANAGEMENT_ADDRESS",
)
"""The environment variables that are read here."""

_ITEM = re.compile(r"(?:(?P<name>[^:=]*)(?::[^=]*)?=)?(?P<url>.+)")
"""DJL's `name:version:engine:devices=url`. All but the URL is optional."""

_S3_FOLDER = re.compile(r"s3://[^/]+/.*")


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A directory with models, and which of them are served.

    `load_models` has the name, or "", and the URL of each model that is loaded at the start, None for all that
    `directory` holds. With `multi_model`, SageMaker loads and unloads the models. With `max_loaded_models`, a model that
    needs room puts others to sleep. Besides those in `directory`, clients may load models below the S3 URLs `sources`,
    each of which ends with a slash. `management` is the address of the routes that load and unload models, None for the
    server's own.
    """

    directory: str
    load_models: tuple[tuple[str, str], ...] | None = None
    multi_model: bool = False
    default_model: str | None = None
    max_loaded_models: int | None = None
    sources: tuple[str, ...] = ()
    management: tuple[str, int] | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], model_dir: Path | None) -> StoreSettings | None:
        """Return the settings, or None if there is one model, which is in `model_dir`. Raises `ConfigError`."""
        multi_model = switch(environ, "SAGEMAKER_MULTI_MODEL")
        items = _items(environ.get("SERVING_LOAD_MODELS", ""))
        given = environ.get("LMI_MODEL_STORE")
        if multi_model and (one := environ.get("LMI_MODEL_DIR")):
            raise ConfigError(
                f"--model-dir (LMI_MODEL_DIR) {one!r} is one model, and SAGEMAKER_MULTI_MODEL=true serves those in "
                f"{given or MULTI_MODEL_DIR}: remove one of them, or use --model-store"
            )
        if given and not Path(given).is_dir():
            raise ConfigError(f"--model-store (LMI_MODEL_STORE) {given!r} is not a directory")
        directory = Path(given) if given else MULTI_MODEL_DIR if multi_model else None
        if directory is None:
            other = Path(environ.get("SERVING_MODEL_STORE") or model_dir or "/opt/ml/model")
            if items is None and not _holds_models(other):
                return None
            directory = other
        limit = environ.get("LMI_MAX_LOADED_MODELS", "")
        address = environ.get("LMI_MANAGEMENT_ADDRESS") or environ.get("SERVING_MANAGEMENT_ADDRESS") or ""
        return cls(
            directory=str(directory.resolve()),
            load_models=() if multi_model and items is None else items,
            multi_model=multi_model,
            default_model=environ.get("LMI_DEFAULT_MODEL") or None,
            max_loaded_models=integer("LMI_MAX_LOADED_MODELS", limit, 10_000) if limit else None,
            sources=_sources(environ.get("LMI_MODEL_SOURCES", "")),
            management=_address(address) if address else None,
        )


def _items(text: str) -> tuple[tuple[str, str], ...] | None:
    """Return the items of DJL's `load_models`, or None for all models."""
    if text.strip().lower() in ("", "all"):
        return None
    if text.strip().lower() == "none":
        return ()
    found = (_ITEM.fullmatch(item.strip()) for item in text.split(",") if item.strip())
    return tuple((match["name"] or "", match["url"]) for match in found if match is not None)


def _sources(text: str) -> tuple[str, ...]:
    """Return the S3 URLs of folders with models. Raises `ConfigError`."""
    folders = tuple(f"{folder.strip().rstrip('/')}/" for folder in text.split(",") if folder.strip())
    for folder in folders:
        if not _S3_FOLDER.fullmatch(folder):
            raise ConfigError(f"LMI_MODEL_SOURCES has value {text!r}: must be S3 URLs, such as s3://bucket/models/")
    return folders


def _holds_models(directory: Path) -> bool:
    """Tell whether sub-directories are models, and `directory` itself is none."""
    try:
        files = {file.name for file in directory.iterdir() if file.is_file()}
    except OSError:
        return False
    is_model = any(name.endswith((".properties", ".py", ".safetensors", ".gguf", ".bin", ".json")) for name in files)
    return not is_model and any(directory.glob("*/serving.properties"))


def _address(text: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `http://host:port`. Raises `ConfigError`."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise ConfigError(f"LMI_MANAGEMENT_ADDRESS has value {text!r}: must be host:port")
    return host, port
