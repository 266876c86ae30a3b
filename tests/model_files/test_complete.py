"""Files that are cut off are refused with one sentence, before anything maps them into memory."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf_files import make_gguf
from lora import write_adapter
from safetensors.torch import save_file
from serving import Server, lmi_check

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.model_files.complete import _BLOCKS, check_adapter_complete, check_complete

CUT_OFF = re.compile(r".* (is cut off: .*|is empty|is not JSON \(.*\)|cannot be read as a GGUF file: .*)", re.DOTALL)


def checkpoint(folder: Path) -> Path:
    folder.mkdir(parents=True)
    save_file({"a": torch.zeros(4, 5), "b": torch.ones(7, dtype=torch.bfloat16)}, folder / "model.safetensors")
    torch.save({"a": torch.zeros(4, 5)}, folder / "pytorch_model.bin")
    index = {"weight_map": {"a": "model.safetensors", "b": "model.safetensors"}}
    for name, content in {
        "config.json": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
        "generation_config.json": {"temperature": 1.0},
        "model.safetensors.index.json": index,
        "tokenizer.json": {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}},
        "tokenizer_config.json": {"eos_token": "</s>"},
    }.items():
        (folder / name).write_text(json.dumps(content))
    write_adapter(folder / "adapter", 0.0, layers=2, width=32)
    return folder


FILES = (
    *(
        "model.safetensors",
        "pytorch_model.bin",
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
    ),
    *("tokenizer.json", "tokenizer_config.json"),
    *("adapter/adapter_model.safetensors", "adapter/adapter_config.json"),
)


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        check_adapter_complete(path) if path.name == "adapter" else check_complete(path)
    return str(refused.value)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_off_at_any_length(tmp_path: Path, name: str) -> None:
    file = checkpoint(tmp_path / "m") / name
    check_complete(file.parent)
    check_adapter_complete(file.parent)
    data = file.read_bytes()
    lengths = {0, 1, 7, 8, 9, len(data) - 1, *random.Random(name).sample(range(len(data)), 20)}
    for length in lengths if "pytorch" not in name else lengths - {1}:
        file.write_bytes(data[:length])
        message = refusal(file.parent)
        assert message.startswith(f"{file} ")
        assert CUT_OFF.fullmatch(message.removesuffix(": copy or download it again")), message
        assert "\n" not in message


def test_a_gguf_file_that_is_cut_off_at_any_length(tmp_path: Path) -> None:
    file = make_gguf(tmp_path / "model.gguf")
    check_complete(file)
    data = file.read_bytes()
    for length in {0, 1, 24, len(data) - 1, *random.Random(1).sample(range(len(data)), 20)}:
        file.write_bytes(data[:length])
        message = refusal(file)
        assert str(file) in message
        assert CUT_OFF.fullmatch(message.removesuffix(": copy or download it again")), message


def test_sizes_of_quantised_tensors_are_those_of_the_library() -> None:
    for name, (per_block, size) in _BLOCKS.items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]] == (per_block, size)


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q8_0])
def test_quantised_tensors_that_lack_a_byte(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tensor("a", gguf.quants.quantize(np.zeros((3, 64), np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    data = file.read_bytes()
    check_complete(file)
    padding = -(3 * 64 // 32 * _BLOCKS[kind.name][1]) % 32
    file.write_bytes(data[: len(data) - padding])
    check_complete(file)
    file.write_bytes(data[: len(data) - padding - 1])
    assert "is cut off" in refusal(file)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "tokenizer.json"])
def test_a_pointer_of_git_lfs(tmp_path: Path, name: str) -> None:
    folder = checkpoint(tmp_path / "m")
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1234\n")
    assert refusal(folder).startswith(f"{folder / name} is a pointer of Git LFS in place of the file")


@pytest.mark.parametrize("header", [b"\xff" * 8, b"\x04" + bytes(7) + b"nope", b"\x02" + bytes(7) + b"[]"])
def test_what_is_no_safetensors_file(tmp_path: Path, header: bytes) -> None:
    folder = checkpoint(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(header)
    assert " is not a safetensors file: " in refusal(folder)


def test_other_files_of_the_folder_may_be_anything(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    for name in ("README.md", "training_args.bin", "optimizer.pt", "trainer_state.json", "notes.gguf"):
        (folder / name).write_bytes(b"")
    check_complete(folder)


def test_an_engine_that_serves_reads_no_more_of_an_adapter_than_its_own_files(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m") / "adapter"
    (folder / "x_config.json").write_text("[" * 1000)
    (folder / "tokenizer.json").write_text("[" * 1000)
    check_adapter_complete(folder)


@pytest.mark.parametrize(("name", "most"), [("adapter/adapter_config.json", 2**20), ("tokenizer.json", 2**27)])
def test_a_json_file_that_is_too_long_is_not_read(tmp_path: Path, name: str, most: int) -> None:
    file = checkpoint(tmp_path / "m") / name
    os.truncate(file, most + 1)
    assert refusal(file.parent) == f"{file} has {most + 1} bytes, and may have {most}"


@pytest.mark.parametrize("name", ["model.safetensors", "model.gguf"])
def test_check_and_serve_say_the_same(tmp_path: Path, name: str) -> None:
    directory = checkpoint(tmp_path / "m")
    shutil.rmtree(directory / "adapter")
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
