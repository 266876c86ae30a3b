"""Converts a GGUF file to OpenVINO's format once, with exactly the weights that the file holds.

OpenVINO's own reader stores a group of weights as `scale * (quant - zero_point)`, with a 16-bit scale and an integer
zero point. That is exact for F16, Q4_0 and Q8_0. In the other types a group has a minimum or a 32-bit scale, and what
rounding loses is not small: with rounded minima, a Q4_1 model answers wrongly (0.4 nats per token). For these types,
scales and zero points are computed from the file again, as float32.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
import numpy.typing as npt
import openvino
import openvino_genai
from openvino import opset13

from backends.openvino.model import MODEL_NAME, Change, save_model
from backends.openvino.weight_forms import unpack
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.gguf import GgufTensor, read_gguf_header


def convert_gguf(gguf_file: Path, folder: Path, report: Callable[[str], None], changes: Sequence[Change] = ()) -> None:
    """Write the model in `gguf_file`, with `changes`, into `folder`, which exists, as openvino_model.xml and .bin.

    `report` is called with a short phase. Raises `ConfigError` if OpenVINO supports neither the architecture nor the
    types of the weights, and `LoadFailed` if there is no room for the model.
    """
    report(f"converting {gguf_file.name}")
    rounded = [tensor for tensor in read_gguf_header(gguf_file).tensors if tensor.type in _UNPACKERS]
    with tempfile.TemporaryDirectory(dir=folder) as written:
        _read(gguf_file, Path(written))
        model = openvino.Core().read_model(Path(written) / MODEL_NAME)
        if rounded:
            _restore(model, gguf_file, rounded)
        for change in changes:
            change(model)
        save_model(model, folder / MODEL_NAME)


def _read(gguf_file: Path, folder: Path) -> None:
    """Write the model into `folder` as OpenVINO reads it."""
    # The reader writes beside the file that it is given, and opens it for writing, which /opt/ml/model does not allow.
    file = folder / gguf_file.name
    if os.access(gguf_file, os.W_OK):
        file.symlink_to(gguf_file.resolve())
    else:
        shutil.copyfile(gguf_file, file)
    # A tokenizer without files, because converting the one in the file would take longer than reading the weights.
    (no_files := folder / "tokenizer").mkdir()
    tokenizer = openvino_genai.Tokenizer(no_files)
    try:
        openvino_genai.LLMPipeline(file, tokenizer, "CPU", enable_save_ov_model=True)
    except (IndexError, RuntimeError) as error:  # an IndexError if the file lacks metadata
        reason = str(error).strip().rpartition("\n")[2]
        raise ConfigError(f"option.model_id: OpenVINO cannot convert {gguf_file}: {reason}") from error
    file.unlink()


class _Quantised(NamedTuple):
    """A matrix of weights, each `scale * quant + minimum`."""

    quants: npt.NDArray[np.uint8]  # [rows, columns]
    scales: npt.NDArray[np.float32]  # [rows, groups]
    minima: npt.NDArray[np.float32]  # [rows, groups]


def _restore(model: openvino.Model, gguf_file: Path, tensors: Iterable[GgufTensor]) -> None:
    """Give the matrices in `model` the scales and minima of the `tensors` in the file.

    The model does not name its matrices, and the rows of some are in another order. The quants tell which is which.
    """
    data = np.memmap(gguf_file, np.uint8, mode="r")
    originals = {_digest(_row_hashes(_unpacked(data, tensor).quants)): tensor for tensor in tensors}
    restored = set()
    for multiply in model.get_ops():
        if multiply.get_type_name() != "Multiply" or (quants := _quants(multiply)) is None:
            continue
        hashes = _row_hashes(quants.reshape(len(quants), -1))
        tensor = originals.get(_digest(hashes))
        if tensor is None:
            continue
        matrix = _unpacked(data, tensor)
        rows = np.empty(len(hashes), np.intp)
        rows[np.argsort(hashes, kind="stable")] = np.argsort(_row_hashes(matrix.quants), kind="stable")
        multiply.output(0).replace(_dequantised(multiply, matrix.scales[rows], matrix.minima[rows]).output(0))
        restored.add(tensor.name)
    if lost := [tensor.name for tensor in originals.values() if tensor.name not in restored]:
        raise ConfigError(f"option.model_id: OpenVINO does not convert {gguf_file} exactly: {lost[0]} has other values")
    model.validate_nodes_and_infer_types()


def _quants(multiply: openvino.Node) -> npt.NDArray[np.uint8] | None:
    """Return the constant in `multiply(subtract(convert(constant), zero_point), scale)`, `[rows, groups, group size]`."""
    subtract = multiply.input_value(0).get_node()
    if subtract.get_type_name() != "Subtract":
        return None
    constant = subtract.input_value(0).get_node().input_value(0).get_node()
    if constant.get_type_name() != "Constant" or len(constant.shape) != 3:
        return None
    return unpack(constant)


def _dequantised(
    multiply: openvino.Node, scales: npt.NDArray[np.float32], minima: npt.NDArray[np.float32]
) -> openvino.Node:
    """Return the replacement of `multiply`, in the only form that OpenVINO computes without dequantising first."""
    # If the scale is 0, all weights are the minimum: with this scale, the quants vanish beside the zero point.
    scales = np.where(scales == 0, -minima * np.float32(2**-30), scales)[..., None]
    zero_points = np.divide(-minima[..., None], scales, out=np.zeros_like(scales), where=scales != 0)
    quants = multiply.input_value(0).get_node().input_value(0).get_node().input_value(0)
    weights = opset13.convert(quants, openvino.Type.f32)
    return opset13.multiply(opset13.subtract(weights, opset13.constant(zero_points)), opset13.constant(scales))


def _row_hashes(quants: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    words = np.ascontiguousarray(quants).view(np.uint64)
    factors = np.random.default_rng(0).integers(2**64, size=words.shape[1], dtype=np.uint64)
    hashes: npt.NDArray[np.uint64] = (words * factors).sum(axis=1)
    return hashes


def _digest(row_hashes: npt.NDArray[np.uint64]) -> tuple[int, int]:
    """Return a key of a matrix that does not depend on the order of its rows."""
    return len(row_hashes), int(row_hashes.sum())


# How a GGUF file packs a row's weights: the layouts are in gguf.quants, which only offers the weights themselves


def _unpacked(data: npt.NDArray[np.uint8], tensor: GgufTensor) -> _Quantised:
    rows, columns = tensor.shape
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[tensor.type]]
    stop = tensor.offset + rows * columns // block_size * block_bytes
    quants, scales, minima = _UNPACKERS[tensor.type](data[tensor.offset : stop].reshape(-1, block_bytes))
    return _Quantised(quants.reshape(rows, -1), scales.reshape(rows, -1), minima.reshape(rows, -1))


def _unpack_q4_1(blocks: npt.NDArray[np.uint8]) -> _Quantised:
    return _Quantised(_nibbles(blocks[:, 4:], 16), _float16(blocks[:, :2]), _float16(blocks[:, 2:4]))


def _unpack_q4_k(blocks: npt.NDArray[np.uint8]) -> _Quantised:
    scales, minima = gguf.quants.Q4_K.get_scale_min(blocks[:, 4:16])
    return _Quantised(
        _nibbles(blocks[:, 16:], 32),
        _float16(blocks[:, :2]) * scales.astype(np.float32),
        -_float16(blocks[:, 2:4]) * minima.astype(np.float32),
    )


def _unpack_q6_k(blocks: npt.NDArray[np.uint8]) -> _Quantised:
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    scales = _float16(blocks[:, 208:]) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    quants = _nibbles(blocks[:, :128], 64) | (high.reshape(-1, 256) & np.uint8(3)) << np.uint8(4)
    return _Quantised(quants, scales, -32 * scales)


def _nibbles(packed: npt.NDArray[np.uint8], run: int) -> npt.NDArray[np.uint8]:
    """Return the 4-bit values of `packed`: for each `run` bytes the low halves, then the high halves."""
    pairs = packed.reshape(len(packed), -1, 1, run)
    halves: npt.NDArray[np.uint8] = np.concatenate([pairs & np.uint8(15), pairs >> np.uint8(4)], axis=2)
    return halves.reshape(len(packed), -1)


def _float16(column: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(column).view(np.float16).astype(np.float32)


_UNPACKERS: dict[str, Callable[[npt.NDArray[np.uint8]], _Quantised]] = {
    "Q4_1": _unpack_q4_1,
    "Q4_K": _unpack_q4_k,
    "Q6_K": _unpack_q6_k,
}
