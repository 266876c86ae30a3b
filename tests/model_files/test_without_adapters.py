"""A model with an adapter in its folder: answers do not depend on whether peft is installed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from facts import says
from lora import write_adapter

from lmi_handlers.config.options import ServingProperties
from lmi_handlers.preflight.checks import warnings
from lmi_handlers.preflight.configuration import read_configuration


@pytest.fixture
def folder(tiny_llama: Path, tmp_path: Path) -> Path:
    """A complete model with an adapter beside it."""
    folder = tmp_path / "m"
    shutil.copytree(tiny_llama, folder)
    return write_adapter(folder, 0.5, layers=2, width=128)


def test_the_library_does_not_load_it(tiny_llama: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from backends.transformers.loading import load_model

    assert AutoModelForCausalLM.from_pretrained(folder).peft_config, "which is what it does by itself"
    prompt = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        expected, logits = (load_model(path, ServingProperties())(prompt).logits for path in (tiny_llama, folder))
    assert torch.equal(expected, logits)
    assert AutoModelForCausalLM.from_pretrained(folder).peft_config, "and does again"


def test_it_is_said_not_to_be_used(folder: Path) -> None:
    configuration = read_configuration({"LMI_MODEL_DIR": str(folder), "OPTION_ROLLING_BATCH": "scheduler"})
    assert any(says(warning, f"{folder} adapter not used option.enable_lora") for warning in warnings(configuration))
    (folder / "adapter_config.json").unlink()
    configuration = read_configuration({"LMI_MODEL_DIR": str(folder), "OPTION_ROLLING_BATCH": "scheduler"})
    assert not any("adapter" in warning for warning in warnings(configuration))
