"""Converts a GGUF file to OpenVINO's format once, with exactly the weights that the file holds.

OpenVINO's own reader stores a group of weights as `scale * (quant - zero_point)`, with a 16-bit scale and an integer
zero point. That is exact for F16, Q4_0 and Q8_0. In the other types a group has a minimum or a 32-bit scale, and what
rounding loses is not small: with rounded minima, a Q4_1 model answers wrongly (0.4 nats per token). For these types,
scales and zero points are computed from the file again, as float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import numpy.typing as npt
import openvino
import openvino_genai
from openvino import opset13

from lmi_handlers.core.errors import ConfigError

MODEL_NAME = "openvino_model.xml"


def convert_gguf(gguf_file: Path, folder: Path, report: Callable[[str], None]) -> None:
    """Write the model in `gguf_file` into `folder`, which exists, as openvino_model.xml and .bin.

    `report` is called with short phases. Raises `ConfigError` if OpenVINO supports neither the architecture nor the
    types of the weights.
    """
    report(f"converting {gguf_file.name}")
    # The reader writes beside the file, and gives no choice of folder.
    link = folder / "reader" / gguf_file.name
    link.parent.mkdir()
    link.symlink_to(gguf_file.resolve())
    try:
        openvino_genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
    except RuntimeError as error:
        reason = str(error).strip().rpartition("\n")[2]
        raise ConfigError(f"option.model_id: OpenVINO cannot convert {gguf_file}: {reason}") from error
    model = openvino.Core().read_model(link.with_name(MODEL_NAME))
    if rounded := [tensor for tensor in gguf.GGUFReader(gguf_file).tensors if tensor.tensor_type in _UNPACKERS]:
        report(f"converting {gguf_file.name}: exact scales")
        _restore(model, rounded, gguf_file)
    openvino.save_model(model, folder / MODEL_NAME, compress_to_fp16=False)
    for file in link.parent.iterdir():
        file.unlink()
    link.parent.rmdir()


class _Quantised(NamedTuple):
    """A matrix of weights, each `scale * quant + minimum`."""

    quants: npt.NDArray[np.uint8]  # [rows, columns]
    scales: npt.NDArray[np.float32]  # [rows, groups]
    minima: npt.NDArray[np.float32]  # [rows, groups]


def _restore(model: openvino.Model, tensors: Iterable[Any], gguf_file: Path) -> None:
    """Give the matrices in `model` the scales and minima of the GGUF `tensors`.

    The model does not name its matrices, and the rows of some are in another order. The quants tell which is which.
    """
    missing = {_digest(_row_hashes(_unpacked(tensor).quants)): tensor for tensor in tensors}
    restored = {}
    for multiply in model.get_ops():
        if multiply.get_type_name() != "Multiply" or (quants := _quants(multiply)) is None:
            continue
        hashes = _row_hashes(quants.reshape(len(quants), -1))
        tensor = missing.get(_digest(hashes))
        if tensor is None:
            continue
        matrix = _unpacked(tensor)
        rows = np.empty(len(hashes), np.intp)
        rows[np.argsort(hashes, kind="stable")] = np.argsort(_row_hashes(matrix.quants), kind="stable")
        multiply.output(0).replace(_dequantised(multiply, matrix.scales[rows], matrix.minima[rows]).output(0))
        restored[tensor.name] = tensor
    if lost := [tensor.name for tensor in missing.values() if tensor.name not in restored]:
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
    stored: npt.NDArray[np.uint8] = constant.data.view(np.uint8)
    if constant.get_element_type() == openvino.Type.u4:
        stored = np.stack([stored & 15, stored >> 4], axis=-1)
    quants: npt.NDArray[np.uint8] = stored.reshape(constant.shape)
    return quants


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


def _unpacked(tensor: Any) -> _Quantised:
    rows = int(tensor.shape[1])
    block_bytes = gguf.GGML_QUANT_SIZES[tensor.tensor_type][1]
    quants, scales, minima = _UNPACKERS[tensor.tensor_type](tensor.data.reshape(-1, block_bytes))
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


_UNPACKERS: dict[Any, Callable[[npt.NDArray[np.uint8]], _Quantised]] = {
    gguf.GGMLQuantizationType.Q4_1: _unpack_q4_1,
    gguf.GGMLQuantizationType.Q4_K: _unpack_q4_k,
    gguf.GGMLQuantizationType.Q6_K: _unpack_q6_k,
}
