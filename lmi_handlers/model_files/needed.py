"""Chooses the files of a model to download, from the Hugging Face hub and from S3 alike."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")
"""The formats of weights, best first. Only the best one that a folder has is downloaded."""

_OTHER_FORMATS = ("*.ckpt", "*.h5", "*.msgpack", "*.onnx", "*.ot", "*.pt", "*.pth")

UNUSED = (*_OTHER_FORMATS, "original/*")
"""Formats that no engine reads, and copies of the weights in such a format."""

ALL_WEIGHTS = (*WEIGHTS, *_OTHER_FORMATS, "*.engine")
"""All formats of weights that a model's own code may load."""

TOKENIZER = ("tokenizer*", "vocab*", "*.model", "*.tiktoken", "tekken.json")
"""Files of tokenizers. A model has at least one of them, unless its tokenizer is in a GGUF file."""


def needed(names: Sequence[str], *, weights: bool = True) -> list[str]:
    """Return those of the relative paths that a model or an adapter is loaded from, in the given order.

    Hidden files and folders are left out too. OpenVINO's own models keep weights in a .bin file beside an .xml file.
    Without `weights`, only what is beside them is returned, unless the tokenizer is in the weights' own file.
    """
    kept = [name for name in names if not _hidden(name) and not any(fnmatchcase(name, unused) for unused in UNUSED)]
    if not weights and has_text_files(kept):
        return [name for name in kept if not is_weights(name)]
    best: dict[PurePosixPath, int] = {}
    for name in kept:
        folder, rank = PurePosixPath(name).parent, _rank(name)
        if rank is not None:
            best[folder] = min(rank, best.get(folder, rank))
    models = {name.removesuffix(".xml") for name in kept if name.endswith(".xml")}
    return [
        name
        for name in kept
        if (rank := _rank(name)) is None
        or rank == best[PurePosixPath(name).parent]
        or name.removesuffix(".bin") in models
    ]


def weight_bytes(model: Path) -> int:
    """Return the size of the weights that an engine would load from a file or a directory."""
    if model.is_file():
        return model.stat().st_size
    names = sorted(file.relative_to(model).as_posix() for file in model.iterdir() if file.is_file())
    return sum((model / name).stat().st_size for name in needed(names) if is_weights(name))


def has_text_files(names: Sequence[str]) -> bool:
    """Tell whether a model's configuration and tokenizer are among the relative paths."""
    return "config.json" in names and any(fnmatchcase(name, pattern) for name in names for pattern in TOKENIZER)


def is_weights(name: str) -> bool:
    """Tell whether the file holds weights."""
    return _rank(name) is not None


def _rank(name: str) -> int | None:
    return next((rank for rank, pattern in enumerate(WEIGHTS) if fnmatchcase(name, pattern)), None)


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))
