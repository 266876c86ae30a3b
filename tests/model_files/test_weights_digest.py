"""Digests that tell weights of one name apart, and that equal files have in common on any machine."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from pathlib import Path

import pytest
from facts import raises

from lmi_handlers.core.errors import LoadFailed
from lmi_handlers.model_files.adapter_weights import CONFIG_NAME
from lmi_handlers.model_files.weights_digest import adapter_digest, model_digest

HEADER = json.dumps({"w": {"dtype": "I8", "shape": [1], "data_offsets": [0, 1]}}).encode()


def weights(size: int, seed: int) -> bytes:
    """A safetensors file of one header, whatever is in its weights."""
    return struct.pack("<Q", len(HEADER)) + HEADER + random.Random(seed).randbytes(size)


def adapter(folder: Path, seed: int = 1, config: str = "{}") -> Path:
    folder.mkdir()
    (folder / CONFIG_NAME).write_text(config)
    (folder / "adapter_model.safetensors").write_bytes(weights(3 << 20, seed))
    return folder


def model(folder: Path, seed: int = 1, config: str = "{}", parts: int = 3) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(config)
    for part in range(1, parts + 1):
        data = weights(2 << 20, seed * part)
        (folder / f"model-{part:05}-of-{parts:05}.safetensors").write_bytes(data)
    return folder


def copied(folder: Path, other: str) -> Path:
    """A copy whose files are older, beside another file, which has no weights."""
    again = shutil.copytree(folder, folder.with_name("again"))
    for file in again.iterdir():
        os.utime(file, (1, 1))
    (again / other).write_text("{}")
    return again


def test_an_adapter_is_another_one_if_any_byte_is(tmp_path: Path) -> None:
    first = adapter(tmp_path / "1")
    again = copied(first, "README.md")
    assert adapter_digest(again) == adapter_digest(first)
    file = again / "adapter_model.safetensors"
    data = bytearray(file.read_bytes())
    for place in (len(data) // 2, len(data) - 1):
        changed = data.copy()
        changed[place] ^= 1
        file.write_bytes(changed)
        assert adapter_digest(again) != adapter_digest(first)
    assert adapter_digest(adapter(tmp_path / "alpha", config='{"lora_alpha": 1}')) != adapter_digest(first)


def test_a_model_is_another_one_if_it_was_trained(tmp_path: Path) -> None:
    first = model(tmp_path / "1")
    again = copied(first, "tokenizer.json")
    assert model_digest(again) == model_digest(first)
    trained, scaled = model(tmp_path / "2", seed=2), model(tmp_path / "3", config='{"rope_theta": 1}')
    file = again / "model-00002-of-00003.safetensors"
    file.write_bytes(weights(2 << 20, 9))
    assert len({model_digest(folder) for folder in (first, trained, scaled, again)}) == 4


def test_samples_are_spread_over_all_bytes(tmp_path: Path) -> None:
    """One of a model's many files has nearly all of its weights. 128 kB are changed there, in one place after the other."""
    folder = model(tmp_path / "m", parts=20)
    file = folder / "large.safetensors"
    with file.open("wb") as opened:
        opened.truncate(64 << 20)
    digests = {model_digest(folder)}
    places = range(1 << 20, 64 << 20, 11_000_000)
    for place in places:
        with file.open("r+b") as opened:
            opened.seek(place)
            opened.write(b"\1" * (128 << 10))
        digests.add(model_digest(folder))
    assert len(digests) == 1 + len(places)


def test_of_a_gguf_file(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.gguf" for name in "abc"]
    for file, seed in zip(files, (1, 1, 2), strict=True):
        file.write_bytes(weights(5 << 20, seed))
    first, again, trained = map(model_digest, files)
    assert first == again != trained


@pytest.mark.parametrize("parts", [1, 200])
def test_little_of_a_model_is_read(tmp_path: Path, parts: int) -> None:
    folder = model(tmp_path / "m", parts=0)
    for part in range(parts):
        with (folder / f"{part}.safetensors").open("wb") as file:
            file.truncate((200 << 30) // parts)
    before = _bytes_read()
    model_digest(folder)
    assert _bytes_read() - before < 32 << 20


@pytest.mark.parametrize("name", ["gone.gguf", "x" * 300])
def test_weights_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with raises(LoadFailed, f"weights {tmp_path / name}"):
        model_digest(tmp_path / name)


def _bytes_read() -> int:
    """The bytes that this process has read so far, from disks or from memory."""
    return int(Path("/proc/self/io").read_text().split()[1])
