"""The models of a server, and what becomes of them. The manager writes the file, all web workers follow it."""

from __future__ import annotations

import enum
import re
from pathlib import Path

import msgspec

from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.files import write_whole

RUNTIME_VARIABLE = "LMI_MODELS_RUNTIME"
"""Environment variable with the runtime directory of a server with several models."""

_FILE_NAME = "models.json"
_NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,128}")


class ModelState(enum.Enum):
    """PENDING: its files are fetched and checked, or others are loaded first. LOADING: its engines start.

    SLEEPING: it has no engines until its next request, which makes it WAKING. FAILED: its engines have ended for good.
    """

    PENDING = "pending"
    LOADING = "loading"
    READY = "ready"
    SLEEPING = "sleeping"
    WAKING = "waking"
    UNLOADING = "unloading"
    FAILED = "failed"


RUNNING = (ModelState.LOADING, ModelState.READY, ModelState.WAKING)
"""States of models with engines, which web workers connect to."""


class RegisteredModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model. `url` is where it was loaded from, and `directory` where its files are.

    `options` take precedence over its serving.properties. `names` are all names by which clients may ask for it, once its
    configuration has been read. `number` changes whenever its engines are started. It takes about
    `memory` bytes. `since` is the time at which it entered its state, in seconds since 1970. `cause` says why it has
    failed.
    """

    name: str
    url: str
    options: dict[str, str] = {}
    at_start: bool = False
    state: ModelState = ModelState.PENDING
    since: float = 0.0
    directory: str = ""
    number: int = 0
    memory: int = 0
    names: tuple[str, ...] = ()
    cause: str = ""


Models = dict[str, RegisteredModel]
"""Models by name, in order of arrival."""


def models_file(runtime_dir: Path) -> Path:
    """Return the file with the models of the server with this runtime directory."""
    return runtime_dir / _FILE_NAME


def read_models(runtime_dir: Path) -> Models | None:
    """Return the models, or None before the manager knows them."""
    try:
        data = models_file(runtime_dir).read_bytes()
    except FileNotFoundError:
        return None
    return msgspec.json.decode(data, type=Models)


def write_models(runtime_dir: Path, models: Models) -> None:
    """Replace the models. Readers see all of the old or all of the new ones."""
    write_whole(models_file(runtime_dir), msgspec.json.encode(models))


def manager_socket(runtime_dir: Path) -> Path:
    """Return the socket of the manager."""
    return runtime_dir / "manager.sock"


def model_runtime_dir(runtime_dir: Path, number: int) -> Path:
    """Return the runtime directory of one model, as that of a server with a single model."""
    return runtime_dir / f"model-{number}"


def users_file(runtime_dir: Path) -> Path:
    """Return the file in a model's runtime directory that each web worker locks while it has requests for the model.

    Its time of modification is when the model was last used.
    """
    return runtime_dir / "users"


def configuration_file(runtime_dir: Path) -> Path:
    """Return the file in a model's runtime directory with its configuration, as the manager has read it.

    Web workers read this one: serving.properties may have changed since the engines were started.
    """
    return runtime_dir / "configuration.json"


def check_model_name(name: str) -> None:
    """Raise `InvalidRequest` unless `name` is one path segment that needs no quoting."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            "must have 1 to 128 letters, digits, dots, dashes or underscores, and not begin with a dot, "
            f"got {name[:64]!r}",
            field="model_name",
        )
