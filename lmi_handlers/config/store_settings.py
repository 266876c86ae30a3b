"""Settings of a server with several models. Read from the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from lmi_handlers.config.environment import Variable, declared_variables, read_values
from lmi_handlers.config.option import InvalidValue
from lmi_handlers.core.errors import ConfigError

MULTI_MODEL_DIR = Path("/opt/ml/models")
"""SageMaker's folder for the models of a multi-model endpoint."""

OF_STORE_VARIABLE = "LMI_MODEL_OF_STORE"
"""Set for the engines of such a server: the operator may not have written their models' serving.properties."""

_ITEM = re.compile(r"(?:(?P<name>[^:=]*)(?::[^=]*)?=)?(?P<url>.+)")
"""DJL's `name:version:engine:devices=url`. All but the URL is optional."""

_S3_FOLDER = re.compile(r"s3://[^/]+/.*")

ModelCount = Annotated[int, msgspec.Meta(ge=1, le=10_000)]


def _items(text: str) -> tuple[tuple[str, str], ...] | None:
    """Return the items of DJL's `load_models`, or None for all models."""
    if text.strip().lower() in ("", "all"):
        return None
    if text.strip().lower() == "none":
        return ()
    found = (_ITEM.fullmatch(item.strip()) for item in text.split(",") if item.strip())
    return tuple((match["name"] or "", match["url"]) for match in found if match is not None)


def _sources(text: str) -> tuple[str, ...]:
    """Return the S3 URLs of folders with models. Raises `InvalidValue`."""
    folders = tuple(f"{folder.strip().rstrip('/')}/" for folder in text.split(",") if folder.strip())
    for folder in folders:
        if not _S3_FOLDER.fullmatch(folder):
            raise InvalidValue("must be S3 URLs, such as s3://bucket/models/")
    return folders


def _address(text: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `http://host:port`. Raises `InvalidValue`."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise InvalidValue("must be host:port")
    return host, port


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A directory with models, and which of them are served.

    `load_models` has the name, or "", and the URL of each model that is loaded at the start, None for all that
    `directory` holds. With `multi_model`, SageMaker loads and unloads the models. Each of `sources` ends with a slash.
    `management` is None if the routes that load and unload models are on the server's own address.
    """

    directory: Annotated[
        str,
        Variable(
            "LMI_MODEL_STORE",
            "Directory with several models: each of its sub-directories that holds one is served.",
            aliases=("SERVING_MODEL_STORE",),
            flag="--model-store",
            metavar="PATH",
        ),
    ]
    load_models: Annotated[
        tuple[tuple[str, str], ...] | None,
        Variable(
            "SERVING_LOAD_MODELS",
            "The models to load at the start: `ALL`, `NONE`, or items separated by commas, as in DJL: `name=path`, "
            "`name:version:engine:devices=path` or `path`. Defaults to `ALL`.",
            read=_items,
        ),
    ] = None
    multi_model: Annotated[
        bool,
        Variable(
            "SAGEMAKER_MULTI_MODEL",
            "Serve a multi-model endpoint: the server starts empty, and SageMaker loads models from /opt/ml/models.",
        ),
    ] = False
    default_model: Annotated[
        str | None,
        Variable(
            "LMI_DEFAULT_MODEL",
            "The model that answers requests that name none. Defaults to the only one, if there is only one.",
        ),
    ] = None
    max_loaded_models: Annotated[
        ModelCount | None,
        Variable(
            "LMI_MAX_LOADED_MODELS",
            "Maximum number of models with running engines. The least recently used ones are put to sleep if there is no "
            "room for another.",
        ),
    ] = None
    sources: Annotated[
        tuple[str, ...],
        Variable(
            "LMI_MODEL_SOURCES",
            "S3 folders that clients may load models from, besides the model store: `s3://bucket/models/`, separated by "
            "commas.",
            read=_sources,
        ),
    ] = ()
    management: Annotated[
        tuple[str, int] | None,
        Variable(
            "LMI_MANAGEMENT_ADDRESS",
            "Address (`host:port`) of the management routes, with a port of its own.",
            aliases=("SERVING_MANAGEMENT_ADDRESS",),
            read=_address,
        ),
    ] = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], model_dir: Path | None) -> StoreSettings | None:
        """Return the settings, or None if there is one model, which is in `model_dir`. Raises `ConfigError`."""
        declared = declared_variables(cls)
        multi_model, items = declared["multi_model"].value(environ), declared["load_models"].value(environ)
        named = declared["directory"]
        name, text = named.given(environ) or ("", "")
        given = text if name == named.variable.name else ""
        if multi_model and (one := environ.get("LMI_MODEL_DIR")):
            raise ConfigError(
                f"--model-dir (LMI_MODEL_DIR) {one!r} is one model, and SAGEMAKER_MULTI_MODEL=true serves those in "
                f"{given or MULTI_MODEL_DIR}: remove one of them, or use --model-store"
            )
        if given and not Path(given).is_dir():
            raise ConfigError(f"--model-store (LMI_MODEL_STORE) {given!r} is not a directory")
        directory = Path(given) if given else MULTI_MODEL_DIR if multi_model else None
        if directory is None:
            other = Path(text or model_dir or "/opt/ml/model")
            if items is None and not _holds_models(other):
                return None
            directory = other
        values = read_values(cls, environ) | {"directory": str(directory.resolve())}
        if multi_model and items is None:
            values["load_models"] = ()
        return cls(**values)


def _holds_models(directory: Path) -> bool:
    """Tell whether sub-directories are models, and `directory` itself is none."""
    try:
        files = {file.name for file in directory.iterdir() if file.is_file()}
    except OSError:
        return False
    is_model = any(name.endswith((".properties", ".py", ".safetensors", ".gguf", ".bin", ".json")) for name in files)
    return not is_model and any(directory.glob("*/serving.properties"))
