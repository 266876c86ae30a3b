"""The cache of models deletes its own entries, and nothing else that is in its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from facts import raises

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.model_files.model_cache import ModelCache


def write(folder: Path, size: int) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes(size))
    return folder


def filling(size: int) -> Callable[[Path], Path]:
    return lambda partial: write(partial / "files", size)


def test_folders_of_others_are_neither_counted_nor_deleted(tmp_path: Path) -> None:
    """With LMI_CACHE_DIR=/data, models that somebody keeps in /data/models are beside ours."""
    theirs = write(tmp_path / "llama", 1000)
    cache = ModelCache(tmp_path, 100)
    assert cache.hold(theirs) is None  # an adapter in it, for example
    with cache.use("a-1", filling(60), lambda done: None) as folder:
        assert cache.make_room(40, "b-1") == 0
        with raises(ConfigError, "b-1 needs 0.0 MB more"):
            cache.make_room(41, "b-1")
        assert folder.is_dir()
    assert cache.make_room(50, "b-1") == 50
    assert not folder.exists()
    assert (theirs / "model.safetensors").stat().st_size == 1000
