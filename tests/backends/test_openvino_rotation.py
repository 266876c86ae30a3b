"""Queries and keys are rotated together where that changes nothing."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from gguf_files import make_gguf

from backends.openvino import model
from backends.openvino.gguf import convert_gguf
from backends.openvino.model import EXACT, MODEL_NAME, compile_model
from backends.openvino.quantize import quantize
from backends.openvino.runner import OpenVinoRunner
from backends.openvino.weight_forms import use_integers
from backends.paged.sequence import Sequence, SequenceChunk

TOKENS = [3 + number * number % 9 for number in range(60)]


def layers(ir_file: Path) -> Counter[str]:
    executed = compile_model(ir_file, EXACT)[0].get_runtime_model().get_ops()
    return Counter(layer.get_rt_info()["layerType"].value for layer in executed)


def logits(ir_file: Path) -> npt.NDArray[np.float32]:
    again = functools.partial(compile_model, ir_file, EXACT)
    runner = OpenVinoRunner(again(), 4, again)
    sequence = Sequence("a", TOKENS, len(TOKENS))
    sequence.blocks = [2, 0]
    chunks = [SequenceChunk(sequence, start, TOKENS[start : start + 20], 20) for start in (0, 20, 40)]
    return np.concatenate([runner.forward([chunk]).copy() for chunk in chunks])


@pytest.mark.parametrize(
    ("architecture", "together"),
    [
        ("llama", True),
        ("qwen2", False),  # which adds biases
        ("qwen3", False),  # which has norms for each
    ],
)
def test_what_is_rotated_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str, together: bool
) -> None:
    file = make_gguf(tmp_path / "half.gguf", architecture, matrices=np.float16)
    (folder := tmp_path / "ir").mkdir()
    convert_gguf(file, folder, lambda phase: None, [functools.partial(quantize, method="int8"), use_integers])
    ir_file = folder / MODEL_NAME
    counts, computed = layers(ir_file), logits(ir_file)
    monkeypatch.setattr(model, "rotate_together", lambda model, attention: None)
    apart = layers(ir_file)
    attentions = apart["PagedAttention"]
    assert apart["RoPE"] == 2 * attentions
    assert counts["RoPE"] == (attentions if together else 2 * attentions)
    np.testing.assert_array_equal(computed, logits(ir_file))
