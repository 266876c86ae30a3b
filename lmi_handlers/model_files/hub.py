"""Downloads models from the Hugging Face hub."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from pathlib import Path

from lmi_handlers.core.errors import ConfigError, LoadFailed
from lmi_handlers.core.load_failure import load_failure
from lmi_handlers.model_files.cache_dir import can_write
from lmi_handlers.model_files.needed import UNUSED, WEIGHTS
from lmi_handlers.model_files.secure_mode import check_fetched

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
_IGNORED = [*UNUSED, *WEIGHTS[1:]]
_OPTION = "option.model_id"


def check_hub_id(repo_id: str, looked_in: str, *, revision: str | None, cache_dir: Path) -> None:
    """Raise `ConfigError` if `repo_id` is not a valid hub id, or in offline mode if it has not been downloaded yet.

    `looked_in` says, in parentheses, which folders were searched before.
    """
    if not _HUB_ID.fullmatch(repo_id):
        raise ConfigError(f"option.model_id: {repo_id!r} is neither an existing path nor a hub id{looked_in}")
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        download(repo_id, looked_in, revision=revision, cache_dir=cache_dir, report=_ignore, local_files_only=True)


def cached_config(repo_id: str, *, revision: str | None, cache_dir: Path) -> Path | None:
    """Return the config.json of a repository that has been downloaded, or None. Nothing is sent over the network.

    Hand-written, because the library's `try_to_load_from_cache` would cost each web worker 20 MB. Layout:
    https://huggingface.co/docs/huggingface_hub/guides/manage-cache
    """
    if not _HUB_ID.fullmatch(repo_id):
        return None
    try:
        from huggingface_hub import constants  # only this module, which imports next to nothing
    except ImportError:
        return None
    repository = _cache(Path(constants.HF_HUB_CACHE), cache_dir) / f"models--{repo_id.replace('/', '--')}"
    branch = repository / "refs" / (revision or "main")
    commit = branch.read_text(encoding="ascii") if branch.is_file() else str(revision)
    file = repository / "snapshots" / commit / "config.json"
    return file if file.is_file() else None


def _cache(hub_cache: Path, cache_dir: Path) -> Path:
    """Return the hub's own cache, or ours if that is not writable."""
    return hub_cache if can_write(hub_cache) else cache_dir / "hub"


def _ignore(phase: str) -> None:
    pass


def download(
    repo_id: str,
    looked_in: str,
    *,
    revision: str | None,
    cache_dir: Path,
    report: Callable[[str], None],
    local_files_only: bool = False,
    allow_pickle: bool = False,
    weights: bool = True,
    option: str = _OPTION,
) -> Path:
    """Download a repository into the hub's own cache, or into ours if that is not writable.

    With `local_files_only`, it must have been downloaded already. With `allow_pickle`, `*.bin` files are downloaded if
    there are no safetensors, and without `weights`, neither. Raises `ConfigError`, or `LoadFailed` if another try may help;
    both say which `option` names the repository.
    """
    try:
        from huggingface_hub import constants, snapshot_download
        from huggingface_hub.errors import (
            GatedRepoError,
            HFValidationError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )
    except ImportError as error:
        raise ConfigError(f"{option}: huggingface_hub is needed to download {repo_id}: {error}") from error
    target = _cache(Path(constants.HF_HUB_CACHE), cache_dir)
    report(f"downloading {repo_id}")
    fetch = functools.partial(
        snapshot_download, repo_id, revision=revision, cache_dir=target, local_files_only=local_files_only
    )
    try:
        path = Path(fetch(ignore_patterns=_IGNORED if weights else [*UNUSED, *WEIGHTS]))
        if weights and allow_pickle and not any(path.glob("*.safetensors")):
            path = Path(fetch(ignore_patterns=[pattern for pattern in _IGNORED if pattern != "*.bin"]))
    except (GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise _refusal(error, repo_id, revision, option) from error
    except HFValidationError as error:
        raise ConfigError(f"{option}: {repo_id!r} is neither an existing path nor a hub id{looked_in}") from error
    except OSError as error:
        absent = f"{option}: {repo_id} is neither a folder{looked_in} nor in {target}, and"
        raise _unavailable(error, absent, constants.ENDPOINT) from error
    check_fetched(path)
    return path


def _unavailable(error: OSError, absent: str, endpoint: str) -> ConfigError | LoadFailed:
    """Say why a repository that is `absent` here could not be downloaded from the hub at `endpoint`."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    cause: BaseException = error
    if isinstance(error, LocalEntryNotFoundError):
        if error.__cause__ is None or isinstance(error.__cause__, OfflineModeIsEnabled):
            return ConfigError(f"{absent} the Hugging Face hub cannot be reached")
        cause = error.__cause__
    reason = str(cause).strip().partition("\n")[0] or repr(cause)
    failed = "cannot be downloaded" if cause is error else f"{endpoint} does not answer"
    verdict = ConfigError(f"{absent} {failed}: {reason}")
    if isinstance(cause, HfHubHTTPError) and _may_pass(cause.response.status_code):
        return LoadFailed(str(verdict))
    return load_failure(verdict, cause)


def _refusal(error: Exception, repo_id: str, revision: str | None, option: str = _OPTION) -> ConfigError:
    """Say why the hub does not let a repository be downloaded."""
    from huggingface_hub.errors import GatedRepoError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return ConfigError(f"{option}: {repo_id} is gated; set HF_TOKEN to a token that may read it")
    if isinstance(error, RevisionNotFoundError):
        return ConfigError(
            f"{'option.revision' if option == _OPTION else option}: {repo_id} has no revision {revision}"
        )
    return ConfigError(f"{option}: {repo_id} is not on the Hugging Face hub, or private (HF_TOKEN)")


def ask_hub(repo_id: str, *, revision: str | None, cache_dir: Path) -> tuple[str, bool]:
    """Say what the server would download, "" for nothing, and whether that is certain.

    Raises `ConfigError` if the hub refuses the repository. Only the head of one small file is asked for.
    """
    if cached_config(repo_id, revision=revision, cache_dir=cache_dir) is not None:
        return "", True
    try:
        from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
        from huggingface_hub.errors import (
            EntryNotFoundError,
            GatedRepoError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )
    except ImportError as error:
        raise ConfigError(f"option.model_id: huggingface_hub is needed to download {repo_id}: {error}") from error
    try:
        get_hf_file_metadata(hf_hub_url(repo_id, "config.json", revision=revision), timeout=_PATIENCE)
    except (GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise _refusal(error, repo_id, revision) from error
    except EntryNotFoundError:
        pass  # it has other files
    except Exception as error:  # noqa: BLE001  those of its HTTP client, which depends on the version
        reason = str(error).strip().partition("\n")[0] or repr(error)
        return f"{repo_id} must be downloaded, and {constants.ENDPOINT} does not answer: {reason}", False
    return f"The server downloads {repo_id} from {constants.ENDPOINT}.", True


_PATIENCE = 5.0
"""Seconds in which the hub has to answer."""


def _may_pass(status: int) -> bool:
    """Tell whether the hub may answer differently at the next try."""
    return status >= 500 or status in (408, 429)
