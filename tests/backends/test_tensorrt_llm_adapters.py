"""The TensorRT-LLM adapter: LoRA adapters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from facts import raises
from tensorrt_llm_adapter import (
    EOS,
    PROMPT,
    TARGET_MODULES,
    Load,
    engine,
    finished,
    loading,
    request,
    steps,
    token_ids,
    write_adapter,
    write_adapters,
)

from lmi_handlers.core.errors import ConfigError


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    with loading(tmp_path) as load:
        yield load


@pytest.fixture
def adapters(tmp_path: Path) -> dict[str, Path]:
    return write_adapters(tmp_path / "adapters")


def test_adapters(load: Load, adapters: dict[str, Path]) -> None:
    """The stand-in's adapters add their id to every token."""
    backend = load(adapters, enable_lora=True)
    assert backend.capabilities.adapters == ("one", "two")
    for name in ("one", None, "two"):
        backend.add_request(request(PROMPT, str(name), adapter=name))
    outputs = steps(backend, finished(3))
    for name, shift in (("one", 1), (None, 0), ("two", 2)):
        own = [output for output in outputs if output.request_id == str(name)]
        assert token_ids(own) == [*(token + shift for token in PROMPT), EOS]


def test_target_modules(load: Load, adapters: dict[str, Path]) -> None:
    config = engine(load(adapters, enable_lora=True, max_lora_rank=8)).args.lora_config
    assert config.lora_target_modules == ["attn_dense", "attn_q", "attn_v"]
    assert (config.lora_dir, config.max_lora_rank, config.max_loras) == ([], 8, None)


@pytest.mark.parametrize("target_modules", ["all-linear", ["q_proj", "in_proj"], None])
def test_unknown_target_modules_mean_all(
    load: Load, adapters: dict[str, Path], tmp_path: Path, target_modules: object
) -> None:
    adapters["three"] = write_adapter(tmp_path / "three", target_modules)
    config = engine(load(adapters, enable_lora=True)).args.lora_config
    assert config.lora_target_modules == list(TARGET_MODULES)


def test_adapter_without_a_config(load: Load, tmp_path: Path) -> None:
    with raises(ConfigError, "option.enable_lora: x no config"):
        load({"x": tmp_path}, enable_lora=True)
