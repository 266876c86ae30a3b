"""`option.dtype=auto` on CPUs with and without 16-bit arithmetic."""

from __future__ import annotations

import json
import logging
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from backends.cpu_dtype import is_emulated
from backends.transformers.loading import load_model
from lmi_handlers.config.properties import ServingProperties


def set_cpu(monkeypatch: pytest.MonkeyPatch, *, onednn: bool, instructions: bool = True) -> None:
    """Let torch report a CPU whose 16-bit types oneDNN supports, with or without instructions for bfloat16."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: onednn)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: onednn)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: instructions)


@pytest.fixture(params=[torch.bfloat16, torch.float16])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, torch.dtype]:
    """A tiny model in a 16-bit type."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model = LlamaForCausalLM(config).to(request.param)  # type: ignore[no-untyped-call]
    model.save_pretrained(tmp_path)
    return tmp_path, request.param


def spoken(caplog: pytest.LogCaptureFixture, message: str) -> str:
    """The reason in the log line `message`."""
    reason: str = next(record for record in caplog.records if record.message == message).reason  # type: ignore[attr-defined]
    return reason


def test_auto_uses_float32_if_the_cpu_emulates_the_models_type(
    checkpoint: tuple[Path, torch.dtype], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, own = checkpoint
    set_cpu(monkeypatch, onednn=False)
    with caplog.at_level(logging.INFO, "backends.cpu_dtype"):
        assert load_model(path, ServingProperties()).dtype == torch.float32
    assert f"{str(own).removeprefix('torch.')} is emulated on this CPU" in spoken(caplog, "dtype selected")


def test_auto_uses_the_models_type_if_the_cpu_supports_it(
    checkpoint: tuple[Path, torch.dtype], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, own = checkpoint
    set_cpu(monkeypatch, onednn=True)
    with caplog.at_level(logging.INFO, "backends.cpu_dtype"):
        assert load_model(path, ServingProperties()).dtype == own
    assert spoken(caplog, "dtype selected") == "the model's own"


def test_configured_type_that_is_emulated_logs_a_warning(
    checkpoint: tuple[Path, torch.dtype], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, own = checkpoint
    set_cpu(monkeypatch, onednn=False)
    assert load_model(path, ServingProperties(dtype="bf16" if own == torch.bfloat16 else "fp16")).dtype == own
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert any(f"no {str(own).removeprefix('torch.')} arithmetic" in warning for warning in warnings)


def test_model_without_a_type_is_loaded_in_float32(checkpoint: tuple[Path, torch.dtype]) -> None:
    path, _ = checkpoint
    config = json.loads((path / "config.json").read_text())
    del config["dtype"]
    (path / "config.json").write_text(json.dumps(config))
    assert load_model(path, ServingProperties()).dtype == torch.float32


@pytest.mark.skipif(platform.machine() != "x86_64", reason="about instruction sets of x86")
def test_avx512_without_bfloat16_instructions_emulates(monkeypatch: pytest.MonkeyPatch) -> None:
    set_cpu(monkeypatch, onednn=True, instructions=False)
    assert is_emulated(torch.bfloat16)
    set_cpu(monkeypatch, onednn=True, instructions=True)
    assert not is_emulated(torch.bfloat16)
    assert not is_emulated(torch.float32)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="about instruction sets of x86")
def test_avx2_emulates_both() -> None:
    """Asks torch itself, in a process that is limited to AVX2. The result is the same on any CPU."""
    code = (
        "import torch; from backends.cpu_dtype import is_emulated;"
        "print(is_emulated(torch.bfloat16), is_emulated(torch.float16), is_emulated(torch.float32))"
    )
    environ = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    answer = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["True", "True", "False"]
