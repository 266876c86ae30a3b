"""Queries and keys are rotated together where that changes nothing."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino
import pytest
from gguf_files import make_gguf
from openvino import opset13

from backends.openvino import model
from backends.openvino.gguf import convert_gguf
from backends.openvino.model import EXACT, MODEL_NAME, compile_model
from backends.openvino.quantize import quantize
from backends.openvino.rotation import rotate_together
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


SIZE = 8
"""Of a head."""


def integers(*values: int) -> openvino.Node:
    return opset13.constant(np.array(values, np.int64))


def numbers(*shape: int, value: float = 0.7) -> openvino.Node:
    return opset13.constant(np.full(shape, value, np.float32))


def rotated(vectors: openvino.Node, waves: list[openvino.Node], size: int) -> openvino.Node:
    """Turn the first `size` numbers of each head."""
    begin, middle, end = (integers(number) for number in (0, size // 2, size))
    step, last = integers(1), integers(3)
    low, high = opset13.slice(vectors, begin, middle, step, last), opset13.slice(vectors, middle, end, step, last)
    turned = opset13.concat([opset13.multiply(high, numbers(1, value=-1)), low], -1)
    part = vectors if size == SIZE else opset13.slice(vectors, begin, end, step, last)
    result = opset13.add(opset13.multiply(part, waves[0]), opset13.multiply(turned, waves[1]))
    if size == SIZE:
        return result
    rest = opset13.slice(vectors, end, integers(SIZE), step, last)
    return opset13.concat([result, rest], -1)


def layer(
    order: str = "vkq",
    heads: tuple[int, int] = (4, 2),
    size: int = SIZE,
    change: Callable[[openvino.Node, int, str], openvino.Node] = lambda vectors, heads, name: vectors,
    flatten: Callable[[int], openvino.Node] = lambda heads: integers(0, -1),
    divide: Callable[[int], openvino.Node] = lambda heads: integers(0, 0, heads, SIZE),
    axis: int = -1,
    products: int = 1,
) -> tuple[openvino.Model, openvino.Node]:
    """A layer up to attention, in place of which there is what it would be given."""
    rows = {"q": heads[0] * SIZE, "k": heads[1] * SIZE, "v": 2 * SIZE, "z": 4}
    inputs = opset13.parameter([-1, 1, 32], openvino.Type.f32)
    angles = opset13.parameter([-1, 1, 1, size], openvino.Type.f32)
    random = np.random.default_rng(1)
    parts: dict[str, openvino.Output] = {}
    for names in (order,) if products == 1 else (order[:2], order[2:]):
        sizes = [rows[name] for name in names]
        matrix = opset13.constant(random.standard_normal((sum(sizes), 32)).astype(np.float32))
        product = opset13.matmul(inputs, matrix, False, True)
        split = opset13.variadic_split(product, opset13.constant(np.int64(axis)), integers(*sizes))
        parts |= zip(names, split.outputs(), strict=True)
    waves = [opset13.cos(angles), opset13.sin(angles)]
    found = [opset13.result(opset13.relu(parts["z"]))] if "z" in order else []
    given = []
    for name, count in zip("qk", heads, strict=True):
        divided = opset13.reshape(parts[name], divide(count), special_zero=True)
        turned = rotated(opset13.transpose(divided, integers(0, 2, 1, 3)), waves, size)
        changed = opset13.transpose(change(turned, count, name), integers(0, 2, 1, 3))
        given.append(opset13.reshape(changed, flatten(count), special_zero=True))
    attention = opset13.concat([*given, opset13.reshape(parts["v"], integers(0, -1), special_zero=True)], -1)
    return openvino.Model([opset13.result(attention), *found], [inputs, angles]), attention


def scaled(vectors: openvino.Node, _heads: int, name: str) -> openvino.Node:
    return opset13.multiply(vectors, numbers(1, value=0.3)) if name == "q" else vectors


def differently_scaled(vectors: openvino.Node, heads: int, _name: str) -> openvino.Node:
    return opset13.multiply(vectors, numbers(1, value=heads))


def scaled_by_head(vectors: openvino.Node, heads: int, _name: str) -> openvino.Node:
    return opset13.multiply(vectors, numbers(1, heads, 1, 1))


def equally_scaled(vectors: openvino.Node, _heads: int, _name: str) -> openvino.Node:
    return opset13.multiply(vectors, numbers(1, 1, 1, SIZE))


def squashed(vectors: openvino.Node, _heads: int, _name: str) -> openvino.Node:
    return opset13.tanh(vectors)


def naming_heads(vectors: openvino.Node, heads: int, _name: str) -> openvino.Node:
    return opset13.reshape(vectors, integers(0, heads, 1, SIZE), special_zero=True)


@pytest.mark.parametrize(
    ("together", "options"),
    [
        (True, {}),
        (True, {"order": "kqv"}),
        (True, {"order": "qkv"}),
        (True, {"order": "zqkv"}),
        (True, {"heads": (3, 3)}),
        (True, {"size": 4}),
        (True, {"change": equally_scaled}),
        (False, {"order": "qvk"}),
        (False, {"order": "kzqv"}),
        (False, {"axis": 2}),
        (False, {"order": "vkqz", "products": 2}),
        (False, {"divide": lambda heads: integers(-1, 1, heads, SIZE)}),
        (False, {"change": scaled}),
        (False, {"change": differently_scaled}),
        (False, {"change": scaled_by_head}),
        (False, {"change": scaled_by_head, "heads": (3, 3)}),
        (False, {"change": squashed}),
        (False, {"change": naming_heads, "heads": (3, 3)}),
        (False, {"flatten": lambda heads: integers(-1, heads * SIZE), "heads": (3, 3)}),
    ],
)
def test_the_results_of_a_layer_are_the_same(together: bool, options: dict[str, Any]) -> None:
    random = np.random.default_rng(2)
    inputs = [
        random.standard_normal(shape).astype(np.float32) for shape in ((5, 1, 32), (5, 1, 1, options.get("size", SIZE)))
    ]

    def results(model: openvino.Model) -> list[npt.NDArray[np.float32]]:
        found = openvino.Core().compile_model(model, "CPU", EXACT)(inputs)
        return [found[number].copy() for number in range(len(model.outputs))]

    model, attention = layer(**options)
    expected, operations = results(model), len(model.get_ops())
    rotate_together(model, attention)
    assert (len(model.get_ops()) < operations) == together
    for result, wanted in zip(results(model), expected, strict=True):
        np.testing.assert_array_equal(result, wanted)


def test_queries_that_are_used_elsewhere_stay_as_they_are() -> None:
    model, attention = layer()
    model.add_results([opset13.result(opset13.relu(attention.input_value(0)))])
    operations = len(model.get_ops())
    rotate_together(model, attention)
    assert len(model.get_ops()) == operations
