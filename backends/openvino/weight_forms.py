"""Gives the quantised weights of a converted model the form that a processor multiplies fastest.

The weights of a matrix are `scale * (quant - zero_point)`, in groups along its rows. In the GGUF types with a minimum,
zero points are no integers. Then a weight costs less without them: a group's weights are all off by the same amount, so
a second, small product adds what is missing, the sum of the group's inputs times that amount.

* For products in float32, 4-bit weights lose their zero points in this way: they become signed integers. Their values
  stay the same.
* For processors that multiply integers of 8 bits faster than floating point numbers, OpenVINO rounds the inputs of a
  product to 8 bits, in groups of `GROUP_SIZE` with a scale each, as llama.cpp does. It needs zero points that are
  integers as well. Matrices become one of two forms, which lose about as little: 8 bits for each weight, on a grid so
  fine that the zero point is next to one of its points; or the same quants with zero points rounded to integers, and
  the second product. The first has fewer operations, the second half of the memory to be read for each token.

Queries, keys and values are computed by one product, unless their weights are of different types. For one sequence, an
operation takes OpenVINO about as long as reading 100,000 weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import openvino
from openvino import opset13

from backends.openvino.model import GROUP_SIZE

_SMALL = 2**23
"""A matrix with at most this many weights is stored with 8 bits: for prompts and several sequences, that is faster to read
than a second product to compute. One sequence alone takes up to 5 % longer."""

_STEP = 2**-8
"""The tolerance, in steps, for a zero point that is taken for an integer."""

_WORTH_MERGING = 3
"""If at least this many products have the same inputs, such as queries, keys and values, it is faster to compute them as
one, and to split the result."""


_Sums = dict[tuple[str, int], openvino.Output]
"""The sums of the groups of a product's inputs, `[.., groups]`, by the output that they come from."""


def use_integers(model: openvino.Model) -> None:
    """Change the model so that products with quantised weights can be computed with integers."""
    _change(model, _with_integers)


def use_floats(model: openvino.Model) -> None:
    """Change the model so that products with quantised weights take less time in float32."""
    _change(model, _with_zero_points_in_the_middle)
    _sign(model)


def _change(model: openvino.Model, choose: Callable[[_Weights, int], _Form | None]) -> None:
    """Store weights in the forms that `choose` returns, None for those that stay as they are.

    It is given the weights, and the size of the matrix that they are in: all rows that are multiplied at once.
    """
    sums: _Sums = {}
    by_inputs: dict[tuple[str, int], list[openvino.Node]] = {}
    for product in _products(model):
        by_inputs.setdefault(_name(product.input_value(0)), []).append(product)
    for inputs in list(by_inputs):
        products = by_inputs.pop(inputs)  # they would keep the replaced weights in memory
        found = [(product, weights) for product in products if (weights := _weights(product)) is not None]
        if len(found) >= _WORTH_MERGING:
            size = sum(weights.quants.size for _, weights in found)
            chosen = [(product, form) for product, weights in found if (form := choose(weights, size)) is not None]
            if len(chosen) >= _WORTH_MERGING and len({form.layout for _, form in chosen}) == 1:
                _merge(chosen, sums)
                continue
        for product, weights in found:
            form = choose(weights, weights.quants.size)
            if form is not None and form.weights is not weights:
                _redirect(product.output(0), _product(product.input_value(0), form, sums).output(0))
    model.validate_nodes_and_infer_types()


def _with_integers(weights: _Weights, size: int) -> _Form | None:
    if weights.has_integer_zero_points:
        return _Form(weights)
    rounded = weights._replace(zero_points=np.clip(np.rint(weights.zero_points), 0, 2**weights.bits - 1))
    offsets = rounded.zero_points - weights.zero_points
    if np.abs(offsets).max() <= _STEP:
        return _Form(rounded)
    if size <= _SMALL or weights.bits == 8 or weights.quants.shape[2] != GROUP_SIZE:
        return _Form(_eight_bits(weights))
    return _Form(rounded, weights.scales * offsets)


def _with_zero_points_in_the_middle(weights: _Weights, _size: int) -> _Form | None:
    middle = np.full_like(weights.zero_points, 2 ** (weights.bits - 1))
    if weights.has_integer_zero_points:
        return _Form(weights) if (weights.zero_points == middle).all() else None
    if weights.bits == 8 or weights.quants.shape[2] != GROUP_SIZE:
        return None
    return _Form(weights._replace(zero_points=middle), weights.scales * (middle - weights.zero_points))


def _merge(products: list[tuple[openvino.Node, _Form]], sums: _Sums) -> None:
    """Compute products with the same inputs as one, and split the result."""
    forms = [form for _, form in products]
    offsets = [form.offsets for form in forms if form.offsets is not None]
    quants, scales, zero_points = (np.concatenate([form.weights[part] for form in forms]) for part in range(3))
    weights = _Weights(quants, scales, zero_points, forms[0].weights.bits)
    joined = _Form(weights, np.concatenate(offsets) if offsets else None)
    total = _product(products[0][0].input_value(0), joined, sums)
    rows = opset13.constant(np.array([len(form.weights.quants) for form in forms], np.int64))
    split = opset13.variadic_split(total, opset13.constant(np.int64(-1)), rows)
    for (product, _), part in zip(products, split.outputs(), strict=True):
        _redirect(product.output(0), part)


def _product(inputs: openvino.Output, form: _Form, sums: _Sums) -> openvino.Node:
    """Return the product of `inputs` with weights in this form."""
    product = opset13.matmul(inputs, _matrix(form.weights), False, True)
    return product if form.offsets is None else opset13.add(product, _correction(inputs, form.offsets, sums))


def _sign(model: openvino.Model) -> None:
    """Store weights as signed integers, without zero points, where these are all in the middle. Their values stay the same."""
    nodes = model.get_ops()
    while nodes:
        node = nodes.pop()  # it would keep the replaced weights in memory
        if node.get_type_name() != "Subtract":
            continue
        convert = node.input_value(0).get_node()
        quants, zero_points = (_constant(node.input_value(number).get_node()) for number in (0, 1))
        if quants is None or zero_points is None or not (_is_unsigned(quants) and _is_unsigned(zero_points)):
            continue
        middle = 2 ** (quants.get_element_type().bitwidth - 1)
        if (unpack(zero_points) == middle).all():
            stored = unpack(quants) ^ np.uint8(middle)
            signed = _pairs(stored, openvino.Type.i4) if middle == 8 else opset13.constant(stored.view(np.int8))
            node.output(0).replace(opset13.convert(signed, convert.get_element_type()).output(0))


def _constant(node: openvino.Node) -> openvino.Node | None:
    """Return the constant that `node` is, or that it converts."""
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    return node if node.get_type_name() == "Constant" else None


def _is_unsigned(constant: openvino.Node) -> bool:
    return constant.get_element_type() in (openvino.Type.u4, openvino.Type.u8)


def unpack(constant: openvino.Node) -> npt.NDArray[np.uint8]:
    """Return the integers of 4 or 8 bits in a constant, in its shape."""
    stored: npt.NDArray[np.uint8] = constant.data.view(np.uint8)
    if constant.get_element_type() == openvino.Type.u4:
        stored = np.stack([stored & 15, stored >> 4], axis=-1).reshape(-1)[: prod(constant.shape)]
    integers: npt.NDArray[np.uint8] = stored.reshape(constant.shape)
    return integers


class _Weights(NamedTuple):
    """A matrix, in groups along its rows: `scales * (quants - zero_points)`."""

    quants: npt.NDArray[np.uint8]  # [rows, groups, group size]
    scales: npt.NDArray[np.float32]  # [rows, groups, 1]
    zero_points: npt.NDArray[np.float32]  # [rows, groups, 1]
    bits: int
    has_integer_zero_points: bool = True
    """They are stored as integers."""

    def values(self) -> npt.NDArray[np.float32]:
        return (self.quants - self.zero_points) * self.scales


class _Form(NamedTuple):
    """How a matrix is stored. The `offsets` of the groups, `[rows, groups, 1]`, are missing in all of their weights."""

    weights: _Weights
    offsets: npt.NDArray[np.float32] | None = None

    @property
    def layout(self) -> tuple[object, ...]:
        """Forms with the same layout can be merged."""
        return self.weights.bits, self.weights.quants.shape[1:], self.offsets is None


def _products(model: openvino.Model) -> list[openvino.Node]:
    return [node for node in model.get_ops() if _multiplies_matrix(node)]


def _multiplies_matrix(node: openvino.Node) -> bool:
    """Tell whether `node` multiplies vectors with the rows of a matrix of weights."""
    if node.get_type_name() != "MatMul":
        return False
    attributes = node.get_attributes()
    if attributes["transpose_a"] or not attributes["transpose_b"]:
        return False
    inputs, matrix = (node.input_value(number).get_partial_shape() for number in (0, 1))
    return bool(inputs.rank.is_static and matrix.is_static) and len(matrix) == 2


def _weights(product: openvino.Node) -> _Weights | None:
    """Return the second factor of a product if it is quantised."""
    path = list(_path(product.input_value(1).get_node()))
    if [node.get_type_name() for node in path] != ["Multiply", "Subtract", "Convert", "Constant"]:
        return None
    multiply, subtract, _, quants = path
    scales, zero_points = (_constant(node.input_value(1).get_node()) for node in (multiply, subtract))
    if scales is None or zero_points is None or not _is_unsigned(quants):
        return None
    if len(quants.shape) != 3 or any(tuple(part.shape) != (*quants.shape[:2], 1) for part in (scales, zero_points)):
        return None
    has_integers = _is_unsigned(zero_points)
    zeros = (unpack(zero_points) if has_integers else zero_points.data).astype(np.float32)
    bits = quants.get_element_type().bitwidth
    return _Weights(unpack(quants), scales.data.astype(np.float32), zeros, bits, has_integers)


def _path(node: openvino.Node) -> Iterator[openvino.Node]:
    """Yield what computes a matrix from its quants, without changes of its shape or type in the end."""
    while node.get_type_name() in ("Reshape", "Convert"):
        node = node.input_value(0).get_node()
    while node.get_type_name() in ("Multiply", "Subtract", "Convert"):
        yield node
        node = node.input_value(0).get_node()
    yield node


def _matrix(weights: _Weights) -> openvino.Node:
    rows, groups, size = weights.quants.shape
    quants, zeros = (_stored(part.astype(np.uint8), weights.bits) for part in (weights.quants, weights.zero_points))
    differences = opset13.subtract(opset13.convert(quants, "f32"), opset13.convert(zeros, "f32"))
    values = opset13.multiply(differences, opset13.constant(weights.scales.astype(np.float32)))
    return opset13.reshape(values, opset13.constant(np.array([rows, groups * size], np.int64)), special_zero=False)


def _redirect(old: openvino.Output, new: openvino.Output) -> None:
    new.set_names(old.get_names())
    old.set_names(set())
    for user in old.get_target_inputs():
        user.replace_source_output(new)


def _correction(inputs: openvino.Output, offsets: npt.NDArray[np.float32], sums: _Sums) -> openvino.Node:
    """Return the product of `inputs` with weights that are off by `offsets`, `[rows, groups, 1]`.

    `sums` has those that products with the same inputs share.
    """
    key = _name(inputs)
    if key not in sums:
        rank = len(inputs.get_partial_shape())
        groups = opset13.constant(np.array([*[0] * (rank - 1), offsets.shape[1], GROUP_SIZE], np.int64))
        grouped = opset13.reshape(inputs, groups, special_zero=True)
        sums[key] = opset13.reduce_sum(grouped, opset13.constant(np.array([rank], np.int64)), keep_dims=False).output(0)
    return opset13.matmul(sums[key], opset13.constant(np.ascontiguousarray(offsets[..., 0])), False, True)


def _name(output: openvino.Output) -> tuple[str, int]:
    return output.get_node().get_name(), output.get_index()


def _eight_bits(weights: _Weights) -> _Weights:
    """Return the weights with 8 bits and integer zero points."""
    values = weights.values()
    rounded = _rounded(values)
    if weights.bits == 8:
        return rounded
    finer = _finer(weights)
    # Only where a zero point is far from all quants, as in groups whose weights have one sign, rounding loses less.
    losses = [np.square(form.values() - values).sum(axis=-1, keepdims=True) for form in (finer, rounded)]
    better = losses[0] <= losses[1]
    return _Weights(
        np.where(better, finer.quants, rounded.quants),
        np.where(better, finer.scales, rounded.scales),
        np.where(better, finer.zero_points, rounded.zero_points),
        bits=8,
    )


def _finer(weights: _Weights) -> _Weights:
    """Divide the steps of 4-bit weights by a number that makes the zero point of their group nearly an integer.

    All weights of a group are then off by the same, at most 1/34 of a step, and by 1/240 on average.
    """
    zero_points = weights.zero_points
    parts = np.ones_like(zero_points)
    least = np.full_like(zero_points, np.inf)
    for number in range(1, 255 // 15 + 1):
        errors = np.abs(_zeros(zero_points * number) / number - zero_points)
        parts[errors < least] = number
        least = np.minimum(errors, least)
    quants = (weights.quants * parts).astype(np.uint8)
    return _Weights(quants, weights.scales / parts, _zeros(zero_points * parts), bits=8)


def _zeros(zero_points: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    rounded: npt.NDArray[np.float32] = np.clip(np.rint(zero_points), 0, 255)
    return rounded


def _rounded(values: npt.NDArray[np.float32]) -> _Weights:
    """Round weights in groups, `[rows, groups, group size]`, to 256 values, one of which is 0."""
    least = np.minimum(values.min(axis=-1, keepdims=True), 0)
    scales = (np.maximum(values.max(axis=-1, keepdims=True), 0) - least) / np.float32(255)
    scales[scales == 0] = 1  # all weights are 0
    zero_points = np.rint(-least / scales)
    quants = np.clip(np.rint(values / scales) + zero_points, 0, 255)
    return _Weights(quants.astype(np.uint8), scales, zero_points, bits=8)


def _stored(values: npt.NDArray[np.uint8], bits: int) -> openvino.Node:
    return opset13.constant(values) if bits == 8 else _pairs(values, openvino.Type.u4)


def _pairs(values: npt.NDArray[np.uint8], of: openvino.Type) -> openvino.Node:
    """Return a constant of a type of 4 bits. `values` have its bits, from 0 to 15."""
    pairs = np.resize(values.reshape(-1), values.size + values.size % 2).reshape(-1, 2)
    packed = np.ascontiguousarray(pairs[:, 0] | pairs[:, 1] << np.uint8(4))
    return opset13.constant(openvino.Tensor(packed, openvino.Shape([*values.shape]), of), shared_memory=False)
