"""Files that are cut off are refused with one sentence, before anything maps them into memory."""

from __future__ import annotations

import os
import random
import re
import shutil
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from facts import says
from gguf_files import make_gguf
from serving import Server, lmi_check
from whole_model import FILES, checkpoint, field, is_complete

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.gguf import TENSOR_TYPES
from lmi_handlers.model_files.complete import check_adapter_complete, check_complete
from lmi_handlers.model_files.locate import locate_model

CUT_OFF = re.compile(r".* (is cut off.*|is empty|is not JSON \(.*\)|cannot be read as a GGUF file: .*)", re.DOTALL)


def read_folder(root: Path, name: str) -> Path:
    return (root / name).parent if name.startswith("adapters/") else root


def check(path: Path) -> None:
    """Check a model, or an adapter in a folder of adapters."""
    check_adapter_complete(path) if path.parent.name == "adapters" else check_complete(path)


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        check(path)
    return str(refused.value)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_off_at_any_length(tmp_path: Path, name: str) -> None:
    root = checkpoint(tmp_path / "m")
    file, folder = root / name, read_folder(root, name)
    check(folder)
    data = file.read_bytes()
    sampled = random.Random(name).sample(range(len(data)), min(len(data), 24))
    for length in sorted({0, 1, 2, 7, 8, 9, len(data) - 1, *sampled} & {*range(len(data))}):
        file.write_bytes(data[:length])
        if is_complete(name, data[:length]):
            check(folder)
            continue
        message = refusal(folder)
        assert message.startswith(f"{file} ")
        assert CUT_OFF.fullmatch(message.removesuffix(": copy or download it again")), message
        assert "\n" not in message


def test_a_gguf_file_that_is_cut_off_at_any_length(tmp_path: Path) -> None:
    file = make_gguf(tmp_path / "model.gguf")
    check_complete(file)
    data = file.read_bytes()
    for length in {0, 1, 24, len(data) - 1, *random.Random(1).sample(range(len(data)), 24)}:
        file.write_bytes(data[:length])
        message = refusal(file)
        assert str(file) in message
        assert CUT_OFF.fullmatch(message.removesuffix(": copy or download it again")), message
        assert "\n" not in message


def test_sizes_of_quantised_tensors_are_those_of_the_library() -> None:
    for kind in gguf.GGMLQuantizationType:
        assert TENSOR_TYPES[kind.value] == (kind.name, *gguf.GGML_QUANT_SIZES[kind])


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "TQ1_0", "TQ2_0", "IQ4_NL"])
def test_quantised_tensors_that_lack_a_byte(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    quantised = gguf.GGMLQuantizationType[kind]
    per_block, block = gguf.GGML_QUANT_SIZES[quantised]
    size = 3 * 256 // per_block * block
    writer.add_tensor("a", np.zeros((3, size // 3), np.uint8), raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    data = file.read_bytes()
    check_complete(file)
    padding = -size % 32
    file.write_bytes(data[: len(data) - padding])
    check_complete(file)
    file.write_bytes(data[: len(data) - padding - 1])
    assert "is cut off" in refusal(file)


@pytest.mark.parametrize("name", FILES)
def test_a_pointer_of_git_lfs(tmp_path: Path, name: str) -> None:
    root = checkpoint(tmp_path / "m")
    for pointer in ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1234\n", "version https://git"):
        (root / name).write_text(pointer)
        message = refusal(read_folder(root, name))
        assert says(message, f"{root / name} pointer LFS")


def test_a_part_of_a_split_gguf_file(tmp_path: Path) -> None:
    for number in (1, 2):
        part = make_gguf(tmp_path / f"model-0000{number}-of-00002.gguf")
        assert says(refusal(part), f"option.model_id: {part} join")
    first = tmp_path / "model-00001-of-00002.gguf"
    with pytest.raises(ConfigError, match="is one part of a split model"):
        locate_model(None, model_dir=tmp_path, revision=None, cache_dir=tmp_path / "cache")
    whole = first.rename(tmp_path / "model-00001-of-00001.gguf")
    check_complete(whole)


@pytest.mark.parametrize("dimensions", [5, 2**31])
def test_a_gguf_header_with_more_than_it_may_have(tmp_path: Path, dimensions: int) -> None:
    file = tmp_path / "model.gguf"
    tensor = struct.pack("<QI", 0, dimensions) + struct.pack("<Q", 2**60) * 5 + struct.pack("<IQ", 0, 0)
    file.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + tensor)
    assert says(refusal(file), f"{dimensions} dimensions 4")


@pytest.mark.parametrize(
    ("name", "most"),
    [("adapters/mine/adapter_config.json", 2**20), ("tokenizer.json", 2**27), ("tokenizer.model", 2**26)],
)
def test_a_file_that_is_too_long_is_not_read(tmp_path: Path, name: str, most: int) -> None:
    root = checkpoint(tmp_path / "m")
    os.truncate(root / name, most + 1)
    message = refusal(read_folder(root, name))
    assert message.startswith(f"{root / name} has {most + 1} bytes, and ")
    assert message.endswith(f" may have {most}")


@pytest.mark.parametrize("name", ["chat_template.jinja", "vocab.txt", "pytorch_model-old.bin"])
def test_little_of_a_huge_file_is_read(tmp_path: Path, name: str) -> None:
    """A file of a tebibyte takes no room on the disk, and could not be read."""
    root = checkpoint(tmp_path / "m")
    os.truncate(root / name, 2**40)
    try:
        check_complete(root)
    except ConfigError as error:
        assert str(error).startswith(f"{root / name} ")  # noqa: PT017  it may pass: nothing is missing


def test_older_weights_with_shared_storages_and_any_pickle_protocol(tmp_path: Path) -> None:
    shared = torch.zeros(7)
    weights = {"a": shared, "b": shared[2:], "c": torch.zeros(0), "d": torch.ones(3, dtype=torch.int64)}
    file = tmp_path / "pytorch_model.bin"
    for protocol in range(2, 6):
        torch.save(weights, file, _use_new_zipfile_serialization=False, pickle_protocol=protocol)
        check_complete(tmp_path)
        file.write_bytes(file.read_bytes()[:-1])
        assert "is cut off: it has " in refusal(tmp_path)


@pytest.mark.parametrize(("name", "part"), [("pytorch_model.bin", b"N0"), ("tokenizer.model", field(1, b""))])
def test_more_parts_than_a_file_may_have(tmp_path: Path, name: str, part: bytes) -> None:
    """Each takes a microsecond. An older file of torch begins with its pickles."""
    (tmp_path / name).write_bytes(part * 2**21)
    message = refusal(tmp_path)
    assert says(message, "not written torch.save") or "has more than 1048576 tokens" in message


def test_what_pickled_weights_would_run_is_not_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "pytorch_model.bin").write_bytes(f"cbuiltins\nopen\n(V{ran}\nVw\ntR.".encode())
    assert says(refusal(tmp_path), "not written torch.save")
    assert not ran.exists()


@pytest.mark.parametrize("header", [b"\xff" * 8, b"\x04" + bytes(7) + b"nope", b"\x02" + bytes(7) + b"[]"])
def test_what_is_no_safetensors_file(tmp_path: Path, header: bytes) -> None:
    folder = checkpoint(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(header)
    assert " is not a safetensors file: " in refusal(folder)


def test_an_engine_that_serves_reads_no_more_of_an_adapter_than_its_own_files(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m") / "adapters" / "mine"
    (folder / "x_config.json").write_text("[" * 1000)
    (folder / "tokenizer.json").write_text("[" * 1000)
    check_adapter_complete(folder)


def test_other_files_of_the_folder_may_be_anything(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    for name in ("README.md", "training_args.bin", "optimizer.pt", "trainer_state.json", "notes.gguf"):
        (folder / name).write_bytes(b"")
    check_complete(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "model.gguf"])
def test_check_and_serve_say_the_same(tmp_path: Path, name: str) -> None:
    directory = checkpoint(tmp_path / "m")
    shutil.rmtree(directory / "adapters")
    if name == "model.gguf":
        shutil.rmtree(directory)
        directory.mkdir()
        make_gguf(directory / name)
    (directory / "pytorch_model.bin").unlink(missing_ok=True)
    data = (directory / name).read_bytes()
    (directory / name).write_bytes(data[:-40])
    sentence = f"{directory / name} is cut off: it has {len(data) - 40} bytes, and its header says "
    checked = lmi_check(directory)
    assert checked.returncode == 1
    assert sentence in checked.stderr
    server = Server(directory, "option.rolling_batch=transformers\n")
    assert server.process.wait(120) == 1
    assert sentence in server.log
    assert "Traceback" not in server.log + checked.stderr
