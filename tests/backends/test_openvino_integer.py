"""Integers on openvino, by `option.dtype` or by default: products with integers lose little, whatever the type of the weights."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import openvino
import psutil
import pytest
from facts import says
from gguf_files import make_gguf
from mixed_gguf import Q, write_mixed_gguf
from openvino import opset13
from paths import DATA
from serving_properties import serving_properties
from tokenizers import Tokenizer

from backends.base import ModelFiles
from backends.openvino import DECLARATION, model, precision, weight_forms
from backends.openvino.backend import OpenVinoBackend
from backends.openvino.gguf import convert_gguf
from backends.openvino.model import EXACT, INTEGER, INTEGER_AND_BFLOAT16, MODEL_NAME, change_model, compile_model
from backends.openvino.precision import choose_precision
from backends.openvino.quantize import quantize
from backends.openvino.runner import OpenVinoRunner
from backends.openvino.weight_forms import use_floats, use_integers
from backends.paged.sequence import Sequence, SequenceChunk
from lmi_handlers.core.gguf import GgufHeader, GgufTensor
from lmi_handlers.model_files.cache_dir import default_cache_dir
from lmi_handlers.model_files.locate import locate_model
from lmi_handlers.model_files.resolve import prepare_gguf, resolve_model
from lmi_handlers.preflight.checks import preview_precision
from lmi_handlers.preflight.configuration import examine_configuration

PROMPT = list(range(100, 140))


@pytest.fixture(scope="module")
def default_model() -> Path:
    path = locate_model(None, model_dir=None, revision=None, cache_dir=Path())
    assert path is not None
    return path


def computed(ir_file: Path, properties: dict[str, str], tokens: list[int]) -> npt.NDArray[np.float32]:
    """The logits of all tokens."""
    again = functools.partial(compile_model, ir_file, properties)
    runner = OpenVinoRunner(again(), 64, again)
    sequence = Sequence("a", tokens, len(tokens))
    sequence.blocks = list(range(-(-len(tokens) // runner.block_size)))
    logits: npt.NDArray[np.float32] = runner.forward([SequenceChunk(sequence, 0, tokens, len(tokens))]).copy()
    return logits


def distance(logits: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> float:
    return float(np.linalg.norm(logits - expected) / np.linalg.norm(expected))


def converted(default_model: Path, folder: Path, kind: Any) -> Path:
    """A model whose matrices are of this type; where a row does not fit into the blocks of K types, Q4_1."""

    def type_of(name: str) -> Any:
        return Q.Q8_0 if "token_embd" in name else kind if "K" not in kind.name or "ffn_down" in name else Q.Q4_1

    write_mixed_gguf(default_model, folder / "model.gguf", 2, type_of, vocab_size=8000)
    (target := folder / "exact").mkdir()
    convert_gguf(folder / "model.gguf", target, lambda phase: None)
    return target


def prepare(exact: Path, folder: Path) -> Path:
    """A copy of a model in which integers are used."""
    shutil.copytree(exact, folder)
    change_model(folder / MODEL_NAME, [use_integers])
    return folder


def zero_points(ir_file: Path) -> list[str]:
    """The types of the integer zero points of all products' weights."""
    found = []
    for node in openvino.Core().read_model(ir_file).get_ops():
        if node.get_type_name() == "MatMul":
            for step in weight_forms._path(node.input_value(1).get_node()):
                if step.get_type_name() == "Subtract" and step.input_value(1).get_node().get_type_name() == "Convert":
                    zeros = step.input_value(1).get_node().input_value(0)
                    found.append(zeros.get_element_type().get_type_name())
    return found


def forms(ir_file: Path) -> dict[str, int]:
    """How many products have quants and zero points of these types."""
    found: Counter[str] = Counter()
    for node in openvino.Core().read_model(ir_file).get_ops():
        if node.get_type_name() == "MatMul":
            path = list(weight_forms._path(node.input_value(1).get_node()))
            if path[-1].get_type_name() != "Constant" or len(path[-1].shape) != 3:
                continue
            types = [path[-1]]
            for step in path:
                if step.get_type_name() == "Subtract":
                    zeros = step.input_value(1).get_node()
                    types.append(zeros if zeros.get_type_name() == "Constant" else zeros.input_value(0).get_node())
            found[" - ".join(node.get_element_type().get_type_name() for node in types)] += 1
    return dict(found)


@pytest.mark.model
@pytest.mark.long
@pytest.mark.parametrize("kind", [Q.Q4_0, Q.Q4_1, Q.Q8_0, Q.Q4_K, Q.Q6_K], ids=lambda kind: kind.name)
def test_every_type(default_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    """With 8 bits, and with a correction."""
    exact = converted(default_model, tmp_path, kind)
    expected = computed(exact / MODEL_NAME, EXACT, PROMPT)
    for small in (2**23, 0):
        monkeypatch.setattr(weight_forms, "_SMALL", small)
        prepared = prepare(exact, tmp_path / f"integer-{small}")
        assert sorted(file.name for file in prepared.iterdir()) == ["openvino_model.bin", MODEL_NAME]
        types = zero_points(prepared / MODEL_NAME)
        assert len(types) == 11, "all matrices of two layers, queries, keys and values as one, and the vocabulary's"
        assert {*types} <= {"u4", "u8"}
        # The form itself loses little, and rounding the inputs not much more. Random weights of K types amplify both.
        assert distance(computed(prepared / MODEL_NAME, EXACT, PROMPT), expected) < 0.02
        assert distance(computed(prepared / MODEL_NAME, INTEGER, PROMPT), expected) < 0.1


@pytest.mark.model
@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        # The last one is the vocabulary's. Queries, keys and values are computed by one product.
        (Q.Q4_1, {"u4 - f32": 14, "u8 - u8": 1}, {"i4": 10, "i8": 1}),
        (Q.Q4_K, {"u4 - f32": 14, "u8 - u8": 1}, {"i4": 10, "i8": 1}),
        (Q.Q4_0, {"u4 - u4": 14, "u8 - u8": 1}, {"i4": 10, "i8": 1}),
        (Q.Q8_0, {"u8 - u8": 15}, {"i8": 11}),
    ],
    ids=["Q4_1", "Q4_K", "Q4_0", "Q8_0"],
)
def test_floats_take_no_zero_points(
    default_model: Path, tmp_path: Path, kind: Any, before: dict[str, int], after: dict[str, int]
) -> None:
    """The numbers are those of the file all the same."""
    exact = converted(default_model, tmp_path, kind)
    expected = computed(exact / MODEL_NAME, EXACT, PROMPT)
    shutil.copytree(exact, changed := tmp_path / "float")
    change_model(changed / MODEL_NAME, [use_floats])
    assert sorted(file.name for file in changed.iterdir()) == ["openvino_model.bin", MODEL_NAME]
    assert (forms(exact / MODEL_NAME), forms(changed / MODEL_NAME)) == (before, after)
    assert distance(computed(changed / MODEL_NAME, EXACT, PROMPT), expected) < 1e-5


@pytest.mark.model
@pytest.mark.parametrize("small", [2**23, 0])
def test_a_correction_of_the_vocabulary_projection(
    default_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    """Its logits are computed for some of the tokens only, and so is what corrects them."""
    write_mixed_gguf(default_model, tmp_path / "model.gguf", 1, lambda name: Q.Q4_1, vocab_size=8000)
    (exact := tmp_path / "exact").mkdir()
    convert_gguf(tmp_path / "model.gguf", exact, lambda phase: None)
    expected = computed(exact / MODEL_NAME, EXACT, PROMPT)
    monkeypatch.setattr(weight_forms, "_SMALL", small)
    for use in (use_integers, use_floats):
        shutil.copytree(exact, changed := tmp_path / use.__name__)
        change_model(changed / MODEL_NAME, [use])
        again = functools.partial(compile_model, changed / MODEL_NAME, EXACT)
        runner = OpenVinoRunner(again(), 64, again)
        sequence = Sequence("a", PROMPT, len(PROMPT))
        sequence.blocks = list(range(-(-len(PROMPT) // runner.block_size)))
        logits = runner.forward([SequenceChunk(sequence, 0, PROMPT, 2)])
        assert distance(logits, expected[-2:]) < 0.02


@pytest.mark.parametrize("use", [use_integers, use_floats], ids=lambda use: use.__name__)
@pytest.mark.parametrize("method", ["int8", "int4"])
def test_products_with_biases(tmp_path: Path, use: Any, method: str) -> None:
    """Qwen's queries, keys and values, which have some, are computed by one product, too."""
    file = make_gguf(tmp_path / "half.gguf", "qwen2", matrices=np.float16)
    quantised = functools.partial(quantize, method=method)
    for name, changes in {"exact": [quantised], "changed": [quantised, use]}.items():
        (tmp_path / name).mkdir()
        convert_gguf(file, tmp_path / name, lambda phase: None, changes)
    types = {
        name: Counter(
            node.get_type_name() for node in openvino.Core().read_model(tmp_path / name / MODEL_NAME).get_ops()
        )
        for name in ("exact", "changed")
    }
    # In float32, weights of 8 bits with zero points that are no integers stay as they are.
    merged = (use, method) != (use_floats, "int8")
    assert types["changed"]["VariadicSplit"] == (1 if merged else 0)
    if merged and use is use_integers:
        assert types["changed"]["MatMul"] == types["exact"]["MatMul"] - 2
    tokens = [3 + number * number % 9 for number in range(30)]
    expected = computed(tmp_path / "exact" / MODEL_NAME, EXACT, tokens)
    # Random weights amplify what is lost with zero points that are integers.
    most = 1e-5 if use is use_floats else 0.1
    assert distance(computed(tmp_path / "changed" / MODEL_NAME, EXACT, tokens), expected) < most


def quantised(rows: int, columns: int, bits: int = 8, group_size: int = 32) -> openvino.Node:
    """A random matrix whose zero points are no integers."""
    random = np.random.default_rng(rows + columns + bits)
    shape = (rows, columns // group_size, group_size)
    quants = weight_forms._stored(random.integers(0, 2**bits, shape, np.uint8), bits)
    zeros = random.uniform(3, 12, (*shape[:2], 1)).astype(np.float32)
    scales = random.uniform(0.1, 0.2, (*shape[:2], 1)).astype(np.float32)
    differences = opset13.subtract(opset13.convert(quants, "f32"), opset13.constant(zeros))
    return opset13.reshape(opset13.multiply(differences, opset13.constant(scales)), [rows, columns], special_zero=False)


def results(model: openvino.Model) -> npt.NDArray[np.float32]:
    inputs = np.random.default_rng(0).standard_normal((2, 3, 64)).astype(np.float32)
    outputs = openvino.Core().compile_model(model, "CPU", EXACT)(inputs)
    return np.concatenate([outputs[number] for number in range(len(outputs))], axis=-1)


def operations(model: openvino.Model) -> Counter[str]:
    return Counter(node.get_type_name() for node in model.get_ops())


def test_products_of_several_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in K types, where values have more bits than queries and keys: they are not merged, and each has its own size."""
    monkeypatch.setattr(weight_forms, "_SMALL", 32 * 64)
    inputs = opset13.parameter([-1, -1, 64], openvino.Type.f32)
    matrices = quantised(32, 64, bits=4), quantised(48, 64, bits=4), quantised(16, 64, group_size=16)
    model = openvino.Model([opset13.matmul(inputs, matrix, False, True) for matrix in matrices], [inputs])
    expected = results(model)
    use_integers(model)
    quants = [weight_forms._weights(product) for product in weight_forms._products(model)]
    assert sorted((w.bits, w.quants.shape) for w in quants if w is not None) == [
        (4, (48, 2, 32)),
        (8, (16, 4, 16)),
        (8, (32, 2, 32)),
    ]
    assert operations(model)["VariadicSplit"] == 0
    assert distance(results(model), expected) < 0.01


def test_zero_points_in_the_middle_of_most_groups() -> None:
    """In float32, such weights stay as they are, because they have no form as signed integers."""
    inputs = opset13.parameter([-1, -1, 64], openvino.Type.f32)
    random = np.random.default_rng(0)
    products = []
    for _ in range(3):
        quants = random.integers(0, 256, (16, 2, 32), np.uint8)
        zeros = np.full((16, 2, 1), 128, np.float32)
        zeros[3, 1] = 127
        scales = random.uniform(0.1, 0.2, (16, 2, 1)).astype(np.float32)
        matrix = weight_forms._matrix(weight_forms._Weights(quants, scales, zeros, bits=8))
        products.append(opset13.matmul(inputs, matrix, False, True))
    model = openvino.Model(products, [inputs])
    expected, before = results(model), operations(model)
    use_floats(model)
    assert operations(model) == before
    np.testing.assert_array_equal(results(model), expected)


@pytest.mark.parametrize("use", [use_integers, use_floats], ids=lambda use: use.__name__)
def test_what_is_replaced_is_freed(monkeypatch: pytest.MonkeyPatch, use: Any) -> None:
    """A model that is converted is in memory once."""
    inputs = opset13.parameter([-1, 4096], openvino.Type.f32)
    last: Any = inputs
    for _ in range(20):
        last = opset13.matmul(last, quantised(4096, 4096, bits=4), False, True)  # 12 MiB
    model = openvino.Model([last], [inputs])
    del last
    monkeypatch.setattr(weight_forms, "_SMALL", 0)
    process = psutil.Process()
    found = []
    pairs = weight_forms._pairs

    def observed(values: npt.NDArray[np.uint8], of: openvino.Type) -> openvino.Node:
        found.append(process.memory_info().rss)
        return pairs(values, of)

    monkeypatch.setattr(weight_forms, "_pairs", observed)
    before = process.memory_info().rss
    use(model)
    assert max(found) - before < 190 * 2**20, "twice would be 240 MiB more"


def test_outputs_of_attention_are_reshaped_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = make_gguf(tmp_path / "half.gguf", matrices=np.float16)
    (folder := tmp_path / "ir").mkdir()
    convert_gguf(file, folder, lambda phase: None)

    def layers() -> Counter[str]:
        executed = compile_model(folder / MODEL_NAME, EXACT)[0].get_runtime_model().get_ops()
        return Counter(layer.get_rt_info()["layerType"].value for layer in executed)

    fewer = layers()
    monkeypatch.setattr(model, "_shape_outputs_of_attention", lambda model: None)
    less = layers() - fewer
    assert {name: less[name] for name in less if name != "Const"} == {"Reshape": 1, "Concatenation": 1}


def test_eight_bits_hold_weights_of_four() -> None:
    random = np.random.default_rng(0)
    zero_points = random.uniform(0, 15, (64, 8, 1)).astype(np.float32)
    zero_points[0], zero_points[1], zero_points[2] = (
        -3.3,
        20,
        1e9,
    )  # of groups whose weights have one sign, or one value
    scales = random.uniform(0.001, 0.01, (64, 8, 1)).astype(np.float32)
    scales[2] = 1e-10
    weights = weight_forms._Weights(random.integers(0, 16, (64, 8, 32)).astype(np.uint8), scales, zero_points, 4)
    stored = weight_forms._eight_bits(weights)
    values = weights.values()
    errors = np.abs(stored.values() - values)
    assert (errors / scales)[3:].max() < 1 / 33
    assert (errors / scales)[3:].mean() < 1 / 200, "rounding to 256 values would lose four times as much"
    assert (errors / np.abs(values).max(axis=-1, keepdims=True))[:3].max() < 1 / 250
    for part in (stored.quants, stored.zero_points):
        assert np.array_equal(part, np.clip(np.rint(part), 0, 255))


@pytest.mark.model
@pytest.mark.long
def test_divergence_of_the_default_model(default_model: Path, tmp_path: Path) -> None:
    """Integers change little, with attention in float32 and in bfloat16.

    On so short a text, chance changes the loss by a few thousandths from processor to processor, and the divergence by
    much less.
    """
    cache_dir = default_cache_dir(os.environ)
    checkpoint = resolve_model(None, model_dir=None, revision=None, cache_dir=cache_dir, report=lambda phase: None)
    tokens = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).encode((DATA / "alice.txt").read_text()).ids
    (exact := tmp_path / "exact").mkdir()
    convert_gguf(default_model, exact, lambda phase: None)

    def log_probabilities(folder: Path, properties: dict[str, str]) -> npt.NDArray[np.float64]:
        logits = computed(folder / MODEL_NAME, properties, tokens)[:-1].astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        normalised: npt.NDArray[np.float64] = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        return normalised

    expected = log_probabilities(exact, EXACT)
    prepared = prepare(exact, tmp_path / "integer")
    for properties in (INTEGER, *([INTEGER_AND_BFLOAT16] if precision.multiplies_bfloat16() else [])):
        found = log_probabilities(prepared, properties)
        divergence = np.mean(np.sum(np.exp(expected) * (expected - found), axis=-1))
        loss = np.mean((expected - found)[range(len(found)), tokens[1:]])
        assert divergence < 0.006
        assert abs(loss) < 0.02


def header(kind: str) -> GgufHeader:
    return GgufHeader({}, (GgufTensor("w", (2, 32), kind, 0),))


@pytest.mark.parametrize(
    ("dtype", "quantize", "file", "instructions", "expected"),
    [
        ("auto", None, "Q4_1", True, "int8"),
        ("auto", None, "Q4_1", False, "float32"),
        ("auto", None, "Q4_1", None, "float32"),
        ("auto", None, "F16", True, "float32"),
        ("auto", "int8", "F16", True, "int8"),
        ("auto", "int4", None, True, "int8"),
        ("auto", "int4", None, False, "float32"),
        ("auto", None, None, True, "float32"),
        ("fp32", None, "Q4_1", True, "float32"),
        ("bf16", None, "Q4_1", True, "float32"),
        ("int8", None, "Q4_1", True, "int8"),
        ("int8", None, "Q4_1", None, "int8"),
        ("int8", None, "Q4_1", False, "float32"),
    ],
)
def test_the_choice(
    monkeypatch: pytest.MonkeyPatch,
    dtype: Any,
    quantize: str | None,
    file: str | None,
    instructions: bool | None,
    expected: str,
) -> None:
    monkeypatch.setattr(precision, "multiplies_integers", lambda: instructions)
    properties = serving_properties(dtype=dtype, quantize=quantize)
    for bfloat16, attention in ((False, ""), (True, " and bfloat16")):
        monkeypatch.setattr(precision, "multiplies_bfloat16", lambda bfloat16=bfloat16: bfloat16)
        chosen, _ = choose_precision(properties, None if file is None else header(file))
        assert chosen == expected + (attention if expected == "int8" else "")


def test_lmi_check_says_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for instructions, words in ((False, "Computes in float32: "), (True, "Computes in int8 and bfloat16: ")):
        for instruction in ("multiplies_integers", "multiplies_bfloat16"):
            monkeypatch.setattr(precision, instruction, lambda instructions=instructions: instructions)
        configuration = examine_configuration({"LMI_MODEL_DIR": str(tmp_path), "OPTION_ROLLING_BATCH": "openvino"})
        assert preview_precision(configuration).startswith(words)
    echo = examine_configuration({"LMI_MODEL_DIR": str(tmp_path), "OPTION_ROLLING_BATCH": "echo"})
    assert preview_precision(echo) == ""


ALL_FLAGS = {"flags", "avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16"}


@pytest.mark.parametrize("variable", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
def test_limits_of_instructions(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """Where OpenVINO is kept from the instructions for bfloat16, it would refuse to attend in it."""
    monkeypatch.setattr(precision, "_flags", lambda: ALL_FLAGS)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "")  # counts as not set
    for allowed, integers, bfloat16 in (
        ("avx2", False, False),
        ("AVX512_CORE", False, False),
        ("avx2_vnni_2", True, False),
        ("avx512_core_vnni", True, False),
        ("AVX512_CORE_BF16", True, True),
        ("avx512_core_amx", True, True),
        ("default", True, True),
    ):
        monkeypatch.setenv(variable, allowed)
        assert (precision.multiplies_integers(), precision.multiplies_bfloat16()) == (integers, bfloat16)


@pytest.mark.parametrize("flags", [ALL_FLAGS, {"flags", "avx2"}])
def test_the_reason_names_what_keeps_from_integers(monkeypatch: pytest.MonkeyPatch, flags: set[str]) -> None:
    """That is the variable only if the processor has the instructions."""
    monkeypatch.setattr(precision, "_flags", lambda: flags)
    monkeypatch.setenv("DNNL_MAX_CPU_ISA", "avx2")
    for properties in (serving_properties(quantize="int8"), serving_properties(dtype="int8")):
        choice, reason = choose_precision(properties, None)
        assert choice == precision.FLOATS
        assert says(reason, "DNNL_MAX_CPU_ISA=AVX2 int8" if flags is ALL_FLAGS else "CPU no int8")


def test_the_older_name_of_a_limit_comes_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_flags", lambda: ALL_FLAGS)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "avx512_core_bf16")
    monkeypatch.setenv("DNNL_MAX_CPU_ISA", "avx2")
    assert precision.multiplies_bfloat16()


@pytest.mark.parametrize("hidden", [{"avx512_bf16"}, {"avx512_vnni"}, ALL_FLAGS], ids=["bfloat16", "VNNI", "all"])
def test_flags_that_a_hypervisor_hides(monkeypatch: pytest.MonkeyPatch, hidden: set[str]) -> None:
    """OpenVINO needs both for bfloat16. One flag of several is enough for integers."""
    monkeypatch.setattr(precision, "_flags", lambda: ALL_FLAGS - hidden)
    assert not precision.multiplies_bfloat16()
    assert precision.multiplies_integers() is (None if hidden == ALL_FLAGS else True)


@pytest.mark.skipif(not precision.multiplies_bfloat16(), reason="needs instructions for bfloat16")
def test_a_cache_in_bfloat16(tmp_path: Path) -> None:
    """Blocks may hold NaN before their first use, are computed in pieces, and can be kept elsewhere meanwhile."""
    file = make_gguf(tmp_path / "half.gguf", matrices=np.float16, context_length=128)
    (folder := tmp_path / "ir").mkdir()
    convert_gguf(file, folder, lambda phase: None)
    tokens = [3 + number * number % 9 for number in range(50)]
    expected = computed(folder / MODEL_NAME, EXACT, tokens)
    again = functools.partial(compile_model, folder / MODEL_NAME, INTEGER_AND_BFLOAT16)
    runner = OpenVinoRunner(again(), 4, again)
    for memory, _ in runner._caches:
        memory[:] = b"\xff" * len(memory)
    first, second = (Sequence(name, tokens, len(tokens)) for name in "ab")
    first.blocks, second.blocks = [2, 0], [1, 3]
    logits = [runner.forward([SequenceChunk(first, 0, tokens[:40], 40)]).copy()]
    for there, here in zip(first.blocks, second.blocks, strict=True):
        runner.write_block(here, runner.read_block(there))
    steps = [SequenceChunk(first, 40, tokens[40:], 10), SequenceChunk(second, 40, [tokens[40]], 1)]
    logits.append(runner.forward(steps).copy())
    assert distance(np.concatenate(logits), np.concatenate([expected, expected[40:41]])) < 0.05


@pytest.fixture(scope="module")
def integers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with 8 bits."""
    folder = tmp_path_factory.mktemp("integers")
    file = make_gguf(folder / "half.gguf", matrices=np.float16, context_length=128)
    convert_gguf(file, folder, lambda phase: None, [functools.partial(quantize, method="int8"), use_integers])
    return folder / MODEL_NAME


@pytest.mark.skipif(not precision.multiplies_bfloat16(), reason="needs instructions for bfloat16")
def test_logits_are_not_rounded(integers: Path) -> None:
    layers = [
        layer for part in compile_model(integers, INTEGER_AND_BFLOAT16) for layer in part.get_runtime_model().get_ops()
    ]
    types = {
        (layer.get_rt_info()["layerType"].value, layer.get_rt_info()["outputPrecisions"].value) for layer in layers
    }
    assert {("FullyConnected", "bf16"), ("FullyConnected", "f32"), ("RMS", "bf16"), ("RoPE", "bf16")} <= types
    logits = computed(integers, INTEGER_AND_BFLOAT16, [3, 4, 5])
    assert (logits.view(np.uint32) & 0xFFFF).any()


@pytest.mark.skipif(not precision.multiplies_bfloat16(), reason="needs instructions for bfloat16")
def test_angles_that_are_not_found_count_as_rounded(integers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "_keep_angles", lambda model: {"fused"})
    with pytest.raises(RuntimeError, match="angles"):
        compile_model(integers, INTEGER_AND_BFLOAT16)


@pytest.mark.skipif(not precision.multiplies_bfloat16(), reason="needs instructions for bfloat16")
def test_steps_of_a_model_in_two_parts(integers: Path) -> None:
    """They have more, fewer or no logits, one after the other, and go on after a failure of either part."""
    tokens = [3 + number * number % 9 for number in range(60)]
    expected = computed(integers, INTEGER_AND_BFLOAT16, tokens)
    again = functools.partial(compile_model, integers, INTEGER_AND_BFLOAT16)
    runner = OpenVinoRunner(again(), 4, again)
    sequence = Sequence("a", tokens, len(tokens))
    sequence.blocks = [2, 0]

    def check(start: int, count: int, num_logits: int) -> None:
        stop = start + count
        logits = runner.forward([SequenceChunk(sequence, start, tokens[start:stop], num_logits)])
        assert logits.shape == (num_logits, 12)
        np.testing.assert_allclose(logits, expected[stop - num_logits : stop], atol=0.1 * expected.std())

    for step in ((0, 10, 1), (10, 5, 0), (15, 10, 10), (25, 1, 0), (26, 1, 1), (27, 20, 20), (47, 10, 3), (57, 3, 0)):
        check(*step)
    for part in (0, 1):
        for error in (RuntimeError("odd"), RuntimeError("can't allocate 7 bytes")):
            assert runner._requests is not None
            failing = mock.Mock(wraps=runner._requests[part])
            failing.infer.side_effect = error
            runner._requests[part] = failing
            with pytest.raises(MemoryError if "allocate" in str(error) else RuntimeError):
                check(0, 20, 20)
            failing.infer.side_effect = None
            check(0, 30, 30)
            check(30, 7, 1)


KEPT_FROM_BFLOAT16 = """
import sys
from pathlib import Path
from serving_properties import serving_properties
from backends.base import ModelFiles
from backends.openvino import precision
from backends.openvino.backend import OpenVinoBackend

precision.multiplies_integers = precision.multiplies_bfloat16 = lambda: True
file, folder = map(Path, sys.argv[1:])
files = ModelFiles(path=folder, gguf_file=file, cache=folder, eos_token_ids=(2,), vocab_size=12)
backend = OpenVinoBackend.load(files, serving_properties(quantize="int8"), lambda phase: None)
backend.close()
print(backend.capabilities.dtype)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="about instruction sets of x86")
def test_a_processor_on_which_bfloat16_fails(tmp_path: Path) -> None:
    """It has the flags, and OpenVINO refuses, here only when it computes."""
    file = make_gguf(tmp_path / "half.gguf", matrices=np.float16)
    folder = prepare_gguf(file, tmp_path, lambda phase: None)
    environ = os.environ | {"ONEDNN_MAX_CPU_ISA": "avx512_core_vnni", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", KEPT_FROM_BFLOAT16, str(file), str(folder)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["int8"], done.stderr
    assert "bfloat16 fails" in done.stderr


@pytest.mark.parametrize("dtype", ["auto", "int8"])
def test_a_backend_with_integers(tmp_path: Path, dtype: Any) -> None:
    """In float32, on a CPU without instructions for integers."""
    file = make_gguf(tmp_path / "half.gguf", matrices=np.float16)
    folder = prepare_gguf(file, tmp_path, lambda phase: None)
    files = ModelFiles(path=folder, gguf_file=file, cache=folder, eos_token_ids=(2,), vocab_size=12)
    properties = serving_properties(quantize="int8", dtype=dtype, max_rolling_batch_size=2)
    chosen, _ = choose_precision(properties, None)
    backend = OpenVinoBackend.load(files, properties, lambda phase: None)
    backend.close()
    assert backend.capabilities.dtype == chosen
    assert {*backend.capabilities.unsupported} == {*DECLARATION.unsupported}, "as docs/backends.md says"
    form = "floats-2" if chosen == "float32" else "integers-2"
    [ir] = folder.glob(f"openvino-*-int8-{form}/")
    assert {*zero_points(ir / MODEL_NAME)} == ({"u8"} if form == "integers-2" else set())
