"""Checkpoints converted for OpenVINO compute what transformers computes, or are refused with the reason."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
import torch
import transformers
from facts import raises, says
from serving import Server

from backends.openvino import model as openvino_model
from backends.openvino import runner as openvino_runner
from backends.openvino.checkpoint import convert_checkpoint
from backends.openvino.model import EXACT, INTEGER_AND_BFLOAT16, MODEL_NAME, compile_model
from backends.openvino.precision import multiplies_bfloat16
from backends.openvino.runner import OpenVinoRunner, _step_inputs
from backends.paged.sequence import Sequence, SequenceChunk
from lmi_handlers.core.errors import ConversionRefused, LMIError, LoadFailed, UnsupportedModel

pytestmark = pytest.mark.model

TINY: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 96,
    "initializer_range": 0.4,  # large enough that attention decides the next token
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "sliding_window": None,
}
SCALED = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen3Config": {"rope_parameters": SCALED | {"original_max_position_embeddings": 32}},
    "GemmaConfig": {},
    "GraniteConfig": {"attention_multiplier": 0.2, "embedding_multiplier": 3.0, "logits_scaling": 2.0},
}
"""Others are compared in test_architectures, in float32. That of Llama is converted for test_backend_contract, too."""
MULTIPLIED = ("GemmaConfig", "GraniteConfig")
"""They have multipliers and norms of their own."""

TRACE = """
import sys
from pathlib import Path
from backends.openvino.tracing import convert
for name in sys.argv[1:]:
    convert(Path(name) / "model", Path(name) / "converted", trust_remote_code=False)
"""
"""Converts several checkpoints: most of the time of `convert_checkpoint` goes into the imports of its process."""


def make_checkpoint(config_class: str, options: dict[str, Any], folder: Path) -> Any:
    """A small model with random weights in bfloat16, written to `folder`."""
    torch.manual_seed(5)
    config = getattr(transformers, config_class)(**(TINY | options))
    model: Any = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]  # the library's own
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases start as constants, which would hide mistakes
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.to(torch.bfloat16).save_pretrained(folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def check_converted(model: Any, folder: Path) -> None:
    """The model in `folder` computes what `model` computes."""
    weights = sum(file.stat().st_size for file in (folder / "model").glob("*.safetensors"))
    assert (folder / "converted" / "openvino_model.bin").stat().st_size < 1.2 * weights  # still 16 bits a weight
    compile_again = functools.partial(compile_model, folder / "converted" / MODEL_NAME, EXACT)
    runner = OpenVinoRunner(compile_again(), 4, compile_again)
    prompt = [(7 * i + 3) % TINY["vocab_size"] for i in range(90)]
    sequence = Sequence("a", prompt, len(prompt))
    sequence.blocks = [2, 0, 3]
    logits = [runner.forward([SequenceChunk(sequence, i, prompt[i : i + 45], 45)]).copy() for i in (0, 45)]
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0].numpy()
    np.testing.assert_allclose(np.concatenate(logits), expected, atol=1e-4 * np.abs(expected).max())


def test_conversion_says_how_far_it_is(tmp_path: Path) -> None:
    model = make_checkpoint("Qwen3Config", CONFIGS["Qwen3Config"], tmp_path / "model")
    (tmp_path / "converted").mkdir()
    phases: list[str] = []
    convert_checkpoint(tmp_path / "model", tmp_path / "converted", phases.append, trust_remote_code=False)
    assert phases == ["converting model", *(f"converting model: {word}" for word in ("tracing", "saving", "comparing"))]
    check_converted(model, tmp_path)


@pytest.mark.long
def test_logits_are_those_of_transformers(tmp_path: Path) -> None:
    models = {name: make_checkpoint(name, CONFIGS[name], tmp_path / name / "model") for name in MULTIPLIED}
    for name in models:
        (tmp_path / name / "converted").mkdir()
    subprocess.run([sys.executable, "-c", TRACE, *(tmp_path / name for name in models)], check=True)
    for name, model in models.items():
        check_converted(model, tmp_path / name)


@pytest.mark.long
@pytest.mark.skipif(not multiplies_bfloat16(), reason="needs instructions for bfloat16")
def test_angles_of_positions_are_not_rounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """These turn queries and keys in ways that OpenVINO does not know as such. Only distances matter to them."""
    models = {name: make_checkpoint(name, {}, tmp_path / name / "model") for name in ("CohereConfig", "Ernie4_5Config")}
    for name in models:
        (tmp_path / name / "converted").mkdir()
    subprocess.run([sys.executable, "-c", TRACE, *(tmp_path / name for name in models)], check=True)
    tokens = [(7 * number + 3) % TINY["vocab_size"] for number in range(60)]
    sequence = Sequence("a", tokens, len(tokens))
    sequence.blocks = [1, 0]
    for name in models:
        again = functools.partial(compile_model, tmp_path / name / "converted" / MODEL_NAME, INTEGER_AND_BFLOAT16)
        logits = OpenVinoRunner(again(), 2, again).forward([SequenceChunk(sequence, 0, tokens, 60)]).copy()
        with monkeypatch.context() as patch:
            patch.setattr(openvino_runner, "_step_inputs", with_shifted_positions)
            shifted = OpenVinoRunner(again(), 2, again).forward([SequenceChunk(sequence, 0, tokens, 60)])
        assert np.linalg.norm(shifted - logits) < 0.1 * np.linalg.norm(logits)
        with monkeypatch.context() as patch, raises(RuntimeError, "OpenVINO may round angles positions bfloat16"):
            patch.setattr(openvino_model, "_keep_angles", names_of_waves)
            again()


def with_shifted_positions(*step: Any) -> dict[str, Any]:
    inputs = _step_inputs(*step)
    return inputs | {"position_ids": inputs["position_ids"] + 1001}


def names_of_waves(model: openvino.Model) -> set[str]:
    return {node.get_friendly_name() for node in model.get_ops() if node.get_type_name() in ("Cos", "Sin")}


@pytest.mark.parametrize(
    ("config_class", "options", "reason"),
    [
        ("MistralConfig", {"sliding_window": 5}, "its attention has sliding_window"),
        pytest.param("MixtralConfig", {"num_local_experts": 4}, "No conversion rule found", marks=pytest.mark.long),
    ],
)
def test_model_that_openvino_cannot_serve(
    config_class: str, options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    make_checkpoint(config_class, options, tmp_path / "model")
    (tmp_path / "converted").mkdir()
    with raises(ConversionRefused, f"option.model_id: openvino {reason}"):
        convert_checkpoint(tmp_path / "model", tmp_path / "converted", lambda phase: None, trust_remote_code=False)


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "error", "reason"),
    [
        ("raise MemoryError('no room')", LoadFailed, "MemoryError no room"),
        ("import nowhere_to_be_found", UnsupportedModel, "ImportError nowhere_to_be_found"),
    ],
)
def test_error_says_what_the_conversion_raised(
    code: str, error: type[LMIError], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a refusal is final: what lacks memory is tried again, and a library may be installed."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))  # where the library copies a model's code
    (model := tmp_path / "model").mkdir()
    (tmp_path / "converted").mkdir()
    (model / "configuration_mine.py").write_text(f"{code}\n")
    auto_map = {"AutoConfig": "configuration_mine.Mine"}
    (model / "config.json").write_text(json.dumps({"model_type": "mine", "auto_map": auto_map}))
    with raises(error, f"option.model_id: openvino {reason}") as caught:
        convert_checkpoint(model, tmp_path / "converted", lambda phase: None, trust_remote_code=True)
    assert caught.type is error


@pytest.mark.parametrize(
    ("code", "error", "reason"),
    [
        ("raise RuntimeError('this torch is broken')", UnsupportedModel, "1 RuntimeError broken"),
        ("os.write(2, b'gone'), os._exit(7)", UnsupportedModel, "status 7 gone"),
        ("os.kill(os.getpid(), 9)", LoadFailed, "SIGKILL memory"),
        ("os.kill(os.getpid(), 11)", ConversionRefused, "SIGSEGV"),
    ],
)
def test_error_says_how_the_conversion_ended(
    code: str, error: type[LMIError], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends while it starts, which takes less time than later."""
    (tmp_path / "torch.py").write_text(f"import os\n{code}\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    with raises(error, f"option.model_id: openvino {reason}") as caught:
        convert_checkpoint(tmp_path, tmp_path, lambda phase: None, trust_remote_code=False)
    assert caught.type is error


@pytest.mark.long
def test_auto_takes_transformers_for_a_model_that_cannot_be_converted(tiny_llama: Path, tmp_path: Path) -> None:
    """Its architecture is in the declaration's list, but not its rotary embedding."""
    model = tmp_path / "model"
    model.mkdir()
    for file in tiny_llama.iterdir():
        (model / file.name).symlink_to(file)
    config = json.loads((tiny_llama / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    (model / "config.json").unlink()
    (model / "config.json").write_text(json.dumps(config))
    for number in range(2):
        server = Server(tmp_path / f"m{number}", f"option.model_id={model}\noption.dtype=fp32\n")
        try:
            server.wait_ready()
            assert says(server.log, "rotary embedding depends")
            assert ("found earlier" in server.log) == (number == 1)
        finally:
            server.stop()
