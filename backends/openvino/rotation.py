"""Rotates queries and keys (RoPE) together where one product computes both.

For one sequence, an operation takes OpenVINO about as long as reading 100,000 weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import openvino
from openvino import opset13

_OPERATIONS = {"Add", "Concat", "Convert", "Multiply", "Reshape", "Slice", "Transpose"}
"""What a rotation consists of. It treats all heads alike."""

_Pairs = dict[str, tuple[openvino.Node, openvino.Node]]
"""Operations on queries, by their names, and the same ones on keys."""


def rotate_together(model: openvino.Model, attention: openvino.Node) -> None:
    """Compute the keys of `attention` as if they were more heads of its queries, if both are rotated in the same way.

    Queries and keys with norms or biases of their own stay as they are. Both must be parts of one VariadicSplit, and be used
    by `attention` only. Layers that rotate nothing are no exception.
    """
    queries, keys = attention.input_value(0), attention.input_value(1)
    pairs: _Pairs = {}
    if not _are_alike(queries, keys, pairs):
        return
    own = {node.get_name() for pair in pairs.values() for node in pair} | {attention.get_name()}
    users = {user for pair in pairs.values() for node in pair for user in _users(node)}
    heads = [pair for pair in pairs.values() if _is_part(pair[0].input_value(0))]
    if not users <= own or len(heads) != 1:
        return
    [(reshape, other)] = heads
    split = reshape.input_value(0).get_node()
    places = [node.input_value(0).get_index() for node in (reshape, other)]
    axis, sizes = (split.input_value(number).get_node().data.tolist() for number in (1, 2))
    first = min(places)
    if axis != -1 or min(sizes) <= 0 or max(places) != first + 1:
        return
    both = sizes[first : first + 2]
    parts = _split(split.input_value(0), [*sizes[:first], sum(both), *sizes[first + 2 :]])
    for place in range(len(sizes)):
        if place not in places:
            split.output(place).replace(parts[place - (place > first)])
    shape = [0, 0, *_heads(reshape)]
    shape[2] += _heads(other)[0]
    reshape.input(0).replace_source_output(parts[first])
    reshape.input(1).replace_source_output(_integers(shape).output(0))
    model.validate_nodes_and_infer_types()  # the queries have a new size
    rotated = _split(queries, both)
    for number, place in enumerate(places):
        attention.input(number).replace_source_output(rotated[place - first])


def _are_alike(queries: openvino.Output, keys: openvino.Output, pairs: _Pairs) -> bool:
    """Tell whether both are computed in the same way from two parts of a product. Adds the operations to `pairs`."""
    if queries == keys:
        return True
    query, key = queries.get_node(), keys.get_node()
    kind = query.get_type_name()
    if kind != key.get_type_name() or query.get_attributes() != key.get_attributes():
        return False
    if kind == "Constant":  # with a value for each head, it would not fit both
        return np.array_equal(query.data, key.data) and query.data.size in (1, *query.data.shape[-1:])
    if kind not in _OPERATIONS:
        return False
    if known := pairs.get(query.get_name()):
        return bool(known[1].get_name() == key.get_name())
    pairs[query.get_name()] = query, key
    inputs = list(zip(query.input_values(), key.input_values(), strict=True))
    if all(map(_is_part, inputs[0])):
        part, other = (value.get_node() for value in inputs[0])
        return bool(part.get_name() == other.get_name() and _heads(query) and _heads(key))
    if kind == "Reshape" and not {*_shape(query)} <= {0, -1}:
        return False  # it names the number of heads
    return all(_are_alike(value, other, pairs) for value, other in inputs)


def _is_part(value: openvino.Output) -> bool:
    return bool(value.get_node().get_type_name() == "VariadicSplit")


def _heads(node: openvino.Node) -> list[int]:
    """Return into how many heads, and of which size, a Reshape divides vectors. Empty if it does anything else."""
    shape = _shape(node) if node.get_type_name() == "Reshape" else []
    return shape[2:] if len(shape) == 4 and shape[:2] == [0, 0] and min(shape) >= 0 else []


def _shape(reshape: openvino.Node) -> list[int]:
    """Return the shape that a Reshape names. Empty if it is no constant."""
    shape = reshape.input_value(1).get_node()
    return [*shape.data.tolist()] if shape.get_type_name() == "Constant" else []


def _users(node: openvino.Node) -> Iterator[str]:
    for output in node.outputs():
        for user in output.get_target_inputs():
            yield user.get_node().get_name()


def _split(value: openvino.Output, sizes: Sequence[int]) -> list[openvino.Output]:
    parts: list[openvino.Output] = opset13.variadic_split(value, _integers(-1), _integers(sizes)).outputs()
    return parts


def _integers(values: int | Sequence[int]) -> openvino.Node:
    return opset13.constant(np.array(values, np.int64))
