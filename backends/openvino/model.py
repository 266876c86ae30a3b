"""Writes and changes a converted model, and compiles it for paged attention."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import openvino
from openvino import opset13
from openvino._offline_transformations import paged_attention_transformation  # public only in C++

from backends.openvino.rotation import rotate_together
from lmi_handlers.core.errors import ConfigError, LoadFailed

MODEL_NAME = "openvino_model.xml"

GROUP_SIZE = 32
"""Weights or inputs in a row that share a scale when they are rounded."""

EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
"""Properties with which the CPU computes in float32, and caches keys and values as such."""

INTEGER = EXACT | {"DYNAMIC_QUANTIZATION_GROUP_SIZE": str(GROUP_SIZE)}
"""The inputs of products with quantised weights are rounded to 8 bits, for a model that `use_integers` has prepared."""

INTEGER_AND_BFLOAT16 = INTEGER | {"INFERENCE_PRECISION_HINT": "bf16", "KV_CACHE_PRECISION": "bf16"}
"""The same, and all else but logits and the angles of positions is in bfloat16, for a CPU that has instructions for it."""

Parts = tuple[openvino.CompiledModel, ...]
"""A compiled model: one part, or two, of which the second computes the logits from `HIDDEN`."""

HIDDEN = "hidden"
"""A result of the first of two parts, and the input of the second."""

Change = Callable[[openvino.Model], None]
"""Changes a converted model in place."""


def save_model(model: openvino.Model, ir_file: Path) -> None:
    """Write the model with the weights as they are. Raises `LoadFailed` if there is no room."""
    try:
        openvino.save_model(model, ir_file, compress_to_fp16=False)
    except RuntimeError as error:
        free = shutil.disk_usage(ir_file.parent).free // 2**20
        raise LoadFailed(
            f"the converted model cannot be written to {ir_file.parent}, which has {free} MiB left"
        ) from error


def change_model(ir_file: Path, changes: Sequence[Change]) -> None:
    """Make changes to the model in an IR file, in this order. Raises `LoadFailed` if there is no room."""
    model = openvino.Core().read_model(ir_file)
    for change in changes:
        change(model)
    written = ir_file.with_stem("changed")
    save_model(model, written)
    del model  # it maps the file that is replaced
    for suffix in (".bin", ".xml"):
        written.with_suffix(suffix).replace(ir_file.with_suffix(suffix))


def compile_model(ir_file: Path, properties: dict[str, str]) -> Parts:
    """Compile an IR file with a state of keys and values for the CPU, to be run by `OpenVinoRunner`.

    The inputs of the first part are those of paged attention, and `logit_indices`: the tokens whose `logits`, `[tokens, 1,
    vocabulary]`, the last part computes. Raises `ConfigError` if the model's attention cannot be converted, and
    `RuntimeError` if OpenVINO cannot compute in bfloat16 what these properties want in it.
    """
    core = openvino.Core()
    model = core.read_model(ir_file)
    try:
        paged_attention_transformation(model)
    except RuntimeError as error:
        reason = str(error).strip().rpartition("\n")[2]
        raise ConfigError(f"option.model_id: OpenVINO has no paged attention for this model: {reason}") from error
    selected = _select_logits(model)
    for attention in _attentions(model):
        rotate_together(model, attention)
    _shape_outputs_of_attention(model)
    if properties["INFERENCE_PRECISION_HINT"] == "f32":
        return (core.compile_model(model, "CPU", properties),)
    head = _cut_head(model, selected)
    names = _keep_angles(model)
    body = core.compile_model(model, "CPU", properties)
    if _rounds(body, names):
        raise RuntimeError("OpenVINO may round the angles of positions to bfloat16")
    return body, core.compile_model(head, "CPU", properties | {"INFERENCE_PRECISION_HINT": "f32"})


def _select_logits(model: openvino.Model) -> openvino.Output:
    """Compute the logits of the tokens `logit_indices` only, because the vocabulary is the largest product of all.

    Returns the inputs of that product, `[tokens, 1, hidden size]`.
    """
    node = model.output("logits").get_node()
    while node.get_type_name() != "MatMul":
        node = node.input_value(0).get_node()
    indices = opset13.parameter([-1], openvino.Type.i64, name="logit_indices")
    indices.output(0).set_names({"logit_indices"})
    hidden = node.input_value(0)
    users = hidden.get_target_inputs()  # the product, and what corrects it
    selected = opset13.gather(hidden, indices, opset13.constant(0)).output(0)
    for user in users:
        user.replace_source_output(selected)
    model.add_parameters([indices])
    model.validate_nodes_and_infer_types()
    return selected


def _cut_head(model: openvino.Model, selected: openvino.Output) -> openvino.Model:
    """Move what computes logits from `selected` into a model of its own. `model` then computes `selected`, in bfloat16.

    OpenVINO has no option for the type of one product, and rounded logits would often be equal.
    """
    result = model.output("logits").get_node()
    users = selected.get_target_inputs()
    rounded = opset13.convert(selected, "bf16").output(0)  # or OpenVINO would keep all sums of layers in float32, too
    given = opset13.parameter(rounded.get_partial_shape(), rounded.get_element_type(), name=HIDDEN)
    for output in rounded, given.output(0):
        output.set_names({HIDDEN})
    for user in users:
        user.replace_source_output(opset13.convert(given, "f32").output(0))
    model.remove_result(result)
    model.add_results([opset13.result(rounded)])
    return openvino.Model([result], [given])


def _keep_angles(model: openvino.Model) -> set[str]:
    """Keep the angles of positions in float32: rounded, those of 1,000 and 1,001 are the same.

    OpenVINO does so by itself where it knows a rotation as such, and rounds nothing on the way to a result. Returns the
    names of their sines and cosines.
    """
    waves = [node for node in model.get_ops() if node.get_type_name() in ("Cos", "Sin")]
    angles = {
        (angle.get_node().get_name(), angle.get_index()): angle for angle in (wave.input_value(0) for wave in waves)
    }
    model.add_results([opset13.result(angle) for angle in angles.values()])
    return {wave.get_friendly_name() for wave in waves}


def _rounds(compiled: openvino.CompiledModel, names: set[str]) -> bool:
    """Tell whether layers with these names, or what they are computed from, are in bfloat16, or cannot be found."""
    found = {layer.get_friendly_name(): layer for layer in compiled.get_runtime_model().get_ops()}
    waiting = [found[name] for name in names & found.keys()]
    if names and not waiting:
        return True
    seen: set[str] = set()
    while waiting:
        layer = waiting.pop()
        if layer.get_friendly_name() in seen:
            continue
        seen.add(layer.get_friendly_name())
        if "bf16" in layer.get_rt_info()["outputPrecisions"].value:
            return True
        waiting += [value.get_node() for value in layer.input_values()]
    return False


def _shape_outputs_of_attention(model: openvino.Model) -> None:
    """Reshape attention's output from `[tokens, size]` to `[tokens, 1, size]` by one operation.

    The model takes two Transposes that undo each other, and two Reshapes, whose shape is computed in each step.
    """
    for attention in _attentions(model):
        output = attention.output(0)
        steps = list(islice(_only_users(output), len(_SHAPES_OF_ATTENTION)))
        if [step.get_type_name() for step in steps] != _SHAPES_OF_ATTENTION:
            continue
        orders = [step.input_value(1).get_node() for step in steps[1:3]]
        last = steps[-1].output(0)
        shape = last.get_partial_shape()
        if all(_is_constant(order, [0, 2, 1, 3]) for order in orders) and len(shape) == 3 and shape[1] == 1:
            last.replace(opset13.unsqueeze(output, opset13.constant(np.int64(1))).output(0))
    model.validate_nodes_and_infer_types()


_SHAPES_OF_ATTENTION = ["Reshape", "Transpose", "Transpose", "Reshape"]


def _only_users(output: openvino.Output) -> Iterator[openvino.Node]:
    """Yield the node that uses `output`, the one that uses its result, and so on, as long as there is only one."""
    while len(users := output.get_target_inputs()) == 1:
        node = next(iter(users)).get_node()
        yield node
        output = node.output(0)


def _is_constant(node: openvino.Node, values: list[int]) -> bool:
    return bool(node.get_type_name() == "Constant" and node.data.tolist() == values)


def _attentions(model: openvino.Model) -> list[openvino.Node]:
    return [node for node in model.get_ops() if node.get_type_name() == "PagedAttentionExtension"]
