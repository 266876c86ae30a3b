"""A converted model has exactly the weights of its GGUF file, whatever their type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import openvino
import pytest
from facts import raises
from mixed_gguf import Q, write_mixed_gguf

from backends.openvino.gguf import convert_gguf
from backends.openvino.model import EXACT, MODEL_NAME
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.model_files.locate import locate_model

TYPES = {
    "token_embd": Q.Q8_0,
    "attn_q": Q.Q4_1,
    "attn_k": Q.Q4_1,
    "attn_v": Q.Q4_0,
    "attn_output": Q.Q8_0,
    "ffn_gate": Q.F16,
    "ffn_up": Q.Q4_1,
    "0.ffn_down": Q.Q4_K,
    "1.ffn_down": Q.Q6_K,
}


@pytest.fixture(scope="module")
def default_model() -> Path:
    path = locate_model(None, model_dir=None, revision=None, cache_dir=Path())
    assert path is not None
    return path


def type_of(name: str) -> Any:
    return next(kind for part, kind in TYPES.items() if part in name)


@pytest.mark.model
def test_weights_are_those_of_the_file(default_model: Path, tmp_path: Path) -> None:
    source = tmp_path / "mixed.gguf"
    write_mixed_gguf(default_model, source, 2, type_of, vocab_size=1000)
    phases: list[str] = []
    (folder := tmp_path / "converted").mkdir()
    convert_gguf(source, folder, phases.append)
    assert phases == ["converting mixed.gguf"]
    assert sorted(file.name for file in folder.iterdir()) == ["openvino_model.bin", MODEL_NAME]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["converted", "mixed.gguf"]

    core = openvino.Core()
    model = core.read_model(folder / MODEL_NAME)
    matrices = [_computed(core, op.input_value(1)) for op in model.get_ops() if op.get_type_name() == "MatMul"]
    for tensor in gguf.GGUFReader(source).tensors:
        if len(tensor.shape) == 2:
            weights = np.sort(gguf.dequantize(tensor.data, tensor.tensor_type), axis=0)  # the order of rows may differ
            nearest = min(
                np.abs(matrix - weights).max()
                for matrix in matrices
                if matrix is not None and matrix.shape == weights.shape
            )
            assert nearest <= 1e-6 * np.abs(weights).max(), tensor.name


def _computed(core: openvino.Core, output: Any) -> npt.NDArray[np.float32] | None:
    """The matrix that `output` computes from constants, its columns sorted. None if it needs inputs."""
    if not output.get_partial_shape().is_static or len(output.get_shape()) != 2:
        return None
    return np.sort(core.compile_model(openvino.Model([output], []), "CPU", EXACT)()[0], axis=0)


@pytest.mark.model
def test_types_that_openvino_cannot_read_are_rejected(default_model: Path, tmp_path: Path) -> None:
    source = tmp_path / "q5.gguf"
    write_mixed_gguf(default_model, source, 1, lambda name: Q.Q5_0, vocab_size=1000)
    (folder := tmp_path / "converted").mkdir()
    with raises(ConfigError, "option.model_id: OpenVINO q5.gguf"):
        convert_gguf(source, folder, lambda phase: None)
