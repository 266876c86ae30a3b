"""Stores the weights of a converted model with 8 or 4 bits (`option.quantize`), rounded to the nearest value.

NNCF's compression without data does the same, with integer zero points, and takes 200 MB of libraries.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import openvino
from openvino import opset13

METHODS = {"int8": 8, "int4": 4}
"""Values of `option.quantize`, and bits per weight."""

GROUP_SIZE = 32
"""Weights in a row that share a scale and a zero point of 32 bits each."""


def quantize(model: openvino.Model, method: str) -> None:
    """Quantise the matrices of the model. With `int4`, the embedding and the vocabulary projection have 8 bits."""
    for node in model.get_ops():
        if node.get_type_name() != "Constant" or len(node.shape) != 2 or node.shape[1] % GROUP_SIZE:
            continue
        weights = node.output(0)
        users = [port.get_node() for port in weights.get_target_inputs()]
        if len(users) == 1 and users[0].get_type_name() == "Convert":  # to float32
            weights = users[0].output(0)
            users = [port.get_node() for port in weights.get_target_inputs()]
        if weights.get_element_type() != openvino.Type.f32 or not all(_takes_rows(user) for user in users):
            continue
        bits = 8 if node.shape[0] == _vocab_size(model) else METHODS[method]
        quantised = _quantised(_float32(node), bits)
        for port in weights.get_target_inputs():
            port.replace_source_output(quantised.output(0))
    model.validate_nodes_and_infer_types()


def _vocab_size(model: openvino.Model) -> int:
    size: int = model.output("logits").partial_shape[-1].get_length()
    return size


def _takes_rows(user: openvino.Node) -> bool:
    """Tell whether `user` looks up rows of the matrix, or multiplies vectors with them."""
    if user.get_type_name() == "MatMul":
        return user.get_attributes()["transpose_b"] is True
    return str(user.get_type_name()) == "Gather"


def _float32(constant: openvino.Node) -> npt.NDArray[np.float32]:
    if constant.get_element_type() == openvino.Type.bf16:  # NumPy has no such type
        words = constant.data.view(np.uint16).astype(np.uint32) << np.uint32(16)
        weights: npt.NDArray[np.float32] = words.view(np.float32).reshape(tuple(constant.shape))
    else:
        weights = constant.data.astype(np.float32)
    return weights


def _quantised(weights: npt.NDArray[np.float32], bits: int) -> openvino.Node:
    """Return `(quants - zero_point) * scale`, in the form that OpenVINO computes without dequantising first."""
    groups = weights.reshape(len(weights), -1, GROUP_SIZE)
    minima = groups.min(axis=-1, keepdims=True)
    scales = (groups.max(axis=-1, keepdims=True) - minima) / np.float32(2**bits - 1)
    scales[scales == 0] = 1  # all weights are the minimum
    quants = np.rint((groups - minima) / scales).astype(np.uint8)
    if bits == 4:
        packed = quants[..., ::2] | quants[..., 1::2] << np.uint8(4)
        tensor = openvino.Tensor(packed, openvino.Shape(groups.shape), openvino.Type.u4)
        stored = opset13.constant(tensor, shared_memory=False)
    else:
        stored = opset13.constant(quants)
    centred = opset13.subtract(opset13.convert(stored, openvino.Type.f32), opset13.constant(-minima / scales))
    scaled = opset13.multiply(centred, opset13.constant(scales))
    return opset13.reshape(scaled, opset13.constant(np.array(weights.shape, np.int64)), special_zero=False)
