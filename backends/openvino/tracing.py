"""Converts a folder of safetensors to OpenVINO's format. Run as a process of its own, so that torch does not stay.

The model is traced in float32 by the library's own code, with an attention that OpenVINO recognises. Afterwards the
result has to compute the same logits as the original.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino
import torch
import transformers
from openvino import opset13
from openvino._offline_transformations import apply_make_stateful_transformation  # public only in C++
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

from backends.openvino.checkpoint import FAILED, REFUSED, UNAVAILABLE, Conversion
from backends.openvino.model import EXACT, MODEL_NAME, compile_model
from backends.openvino.runner import OpenVinoRunner
from backends.paged.probe import Probe
from lmi_handlers.core.errors import ConfigError, LoadFailed
from lmi_handlers.core.file_descriptors import print_to_the_log, read_nothing
from lmi_handlers.core.load_failure import load_failure
from lmi_handlers.model_files.without_adapters import without_adapters
from lmi_handlers.workers.parent import read_settings

_progress = os.fdopen(os.dup(1), "w")
print_to_the_log()  # what libraries print is not progress

_ATTENTION = "lmi_openvino"
_TOLERANCE = 1e-4
"""Maximum relative error of the logits. Rounding gives about 1e-6, a missing mask or bias much more."""


class _Unsupported(Exception):
    """The reason why the model cannot be converted."""


def convert(path: Path, folder: Path, *, trust_remote_code: bool) -> None:
    """Write the model in `path` into `folder` as openvino_model.xml and .bin. Raises `_Unsupported`."""
    config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    _check(config)
    AttentionInterface.register(_ATTENTION, _attention)
    dtype = config.dtype
    with without_adapters():
        model = AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=torch.float32, trust_remote_code=trust_remote_code
        )
    model.train(False)
    expected = _expected_logits(model)
    model.set_attn_implementation(_ATTENTION)
    _say("tracing")
    converted = _trace(model)
    _say("saving")
    if dtype in _STORED:
        _store(converted, _STORED[dtype])
    openvino.save_model(converted, folder / MODEL_NAME, compress_to_fp16=False)
    del model, converted
    gc.collect()
    _say("comparing")
    positions, logits = _paged_logits(folder / MODEL_NAME)
    expected = expected[positions]
    distance = float((np.linalg.norm(logits - expected, axis=-1) / np.linalg.norm(expected, axis=-1)).max())
    if not distance <= _TOLERANCE:
        raise _Unsupported(f"its logits are off by {distance:.2g} of their size")


def _check(config: Any) -> None:
    if config.is_encoder_decoder or config.get_text_config() is not config:
        raise _Unsupported("it is not a plain causal language model")
    if getattr(config, "quantization_config", None) is not None:
        raise _Unsupported("its weights are quantised already")
    parameters = getattr(config, "rope_parameters", None) or {}
    for rope in [parameters, *(value for value in parameters.values() if isinstance(value, dict))]:
        if rope.get("rope_type") in ("dynamic", "longrope"):
            raise _Unsupported(f"its {rope['rope_type']} rotary embedding depends on the length")


class _Model(torch.nn.Module):
    """The model with its keys and values as inputs and outputs, `[batch, kv_heads, length, head_dim]`."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, position_ids: Any, attention_mask: Any, beam_idx: Any, *past: Any) -> Any:
        cache = _Cache([tensor.index_select(0, beam_idx) for tensor in past])
        # Only its presence matters: paged attention is causal by itself, and takes the place of the mask.
        mask = (attention_mask[:, None, None, :].to(torch.float32) - 1.0) * torch.finfo(torch.float32).max
        outputs = self.model(
            input_ids=input_ids,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
            attention_mask=mask,
        )
        return outputs.logits, *cache.tensors


class _Cache:
    """The part of the library's `Cache` that a model uses. `tensors` are keys and values of all layers in turn."""

    is_compileable = False

    def __init__(self, tensors: list[Any]) -> None:
        self.tensors = tensors

    def update(self, key: Any, value: Any, layer_idx: int, *_args: Any, **_options: Any) -> tuple[Any, Any]:
        both = self.tensors[2 * layer_idx : 2 * layer_idx + 2]
        both = [torch.cat((past, new), dim=2) for past, new in zip(both, (key, value), strict=True)]
        self.tensors[2 * layer_idx : 2 * layer_idx + 2] = both
        return both[0], both[1]

    def get_seq_length(self, *_args: Any) -> Any:
        return self.tensors[0].shape[2]


def _attention(  # the library passes arguments by position
    _module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float | None = None, **options: Any
) -> tuple[Any, None]:
    """Compute attention in the one form that OpenVINO turns into paged attention. Raises `_Unsupported`."""
    for name in ("sliding_window", "softcap", "s_aux"):
        if options.get(name) is not None:
            raise _Unsupported(f"its attention has {name}")
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (_repeat(tensor, groups) for tensor in (key, value))
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return output.transpose(1, 2).contiguous(), None


def _repeat(tensor: Any, groups: int) -> Any:
    batch, heads, length, size = tensor.shape
    return tensor[:, :, None].expand(batch, heads, groups, length, size).reshape(batch, heads * groups, length, size)


def _trace(model: Any) -> openvino.Model:
    config = model.config
    layers, heads = config.num_hidden_layers, config.num_key_value_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    past = [torch.zeros(1, heads, 2, size) for _ in range(2 * layers)]
    example = (
        torch.zeros(1, 3, dtype=torch.long),
        torch.arange(3)[None] + 2,
        torch.ones(1, 5, dtype=torch.long),
        torch.zeros(1, dtype=torch.int32),
        *past,
    )
    stateless = _Model(model)
    with torch.no_grad():
        stateless(*example)  # a reason to refuse the model would be lost in the conversion
        converted = openvino.convert_model(stateless, example_input=example)
    states = [f"{layer}.{name}" for layer in range(layers) for name in ("key", "value")]
    shapes = {"input_ids": [-1, -1], "position_ids": [-1, -1], "attention_mask": [-1, -1], "beam_idx": [-1]}
    shapes |= {f"past.{state}": [-1, heads, -1, size] for state in states}
    for port, name in zip(converted.inputs, shapes, strict=True):
        port.get_tensor().set_names({name})
    for port, name in zip(converted.outputs, ["logits", *(f"present.{state}" for state in states)], strict=True):
        port.get_tensor().set_names({name})
    converted.reshape({port: openvino.PartialShape(shapes[port.any_name]) for port in converted.inputs})
    apply_make_stateful_transformation(converted, {f"past.{state}": f"present.{state}" for state in states})
    # The state is empty at first.
    batch = opset13.gather(
        opset13.shape_of(converted.input("input_ids"), output_type="i64"), opset13.constant([0]), opset13.constant(0)
    )
    shape = opset13.concat([batch, opset13.constant(np.array([heads, 0, size], np.int64))], axis=0)
    for node in converted.get_ops():
        if node.get_type_name() == "ReadValue":
            node.set_arguments([opset13.broadcast(opset13.constant(np.float32(0)), shape)])
    converted.validate_nodes_and_infer_types()
    return converted


# Weights are stored in the type that the checkpoint has, and computed with in float32

_STORED = {torch.bfloat16: openvino.Type.bf16, torch.float16: openvino.Type.f16}


def _store(model: openvino.Model, dtype: openvino.Type) -> None:
    """Store every weight as `dtype` where that is exact."""
    for node in model.get_ops():
        if node.get_type_name() != "Constant" or node.get_element_type() != openvino.Type.f32:
            continue
        if len(node.shape) < 2 or node.data.size < 1024:
            continue
        values = torch.from_numpy(node.data)
        short = values.to(torch.bfloat16 if dtype == openvino.Type.bf16 else torch.float16)
        if not torch.equal(short.to(torch.float32), values):
            continue
        stored = opset13.constant(
            openvino.Tensor(short.view(torch.int16).numpy(), node.shape, dtype), shared_memory=False
        )
        targets = node.output(0).get_target_inputs()
        back = opset13.convert(stored, openvino.Type.f32)
        for target in targets:
            target.replace_source_output(back.output(0))


# A prompt in pieces, of which the first ends without logits; a second one joins, both decode, one is left.
_PROBE = Probe(
    lengths=(41, 6),
    tables=((5, 2), (3,)),
    steps=(
        ((0, 0, 30, 4),),
        ((0, 30, 40, 0), (1, 0, 3, 3)),
        ((0, 40, 41, 1), (1, 3, 4, 1)),
        ((1, 4, 5, 1),),
        ((1, 5, 6, 1),),
    ),
)


def _expected_logits(model: Any) -> npt.NDArray[np.float32]:
    tokens = _PROBE.token_ids(model.get_input_embeddings().weight.shape[0])
    with torch.inference_mode():
        return np.concatenate([model(torch.tensor([ids]), use_cache=False).logits[0].numpy() for ids in tokens])


def _paged_logits(ir_file: Path) -> tuple[list[int], npt.NDArray[np.float32]]:
    """Return the positions of some tokens of the probe, and their logits."""
    compile_again = functools.partial(compile_model, ir_file, EXACT)
    positions, logits = _PROBE.run(OpenVinoRunner(compile_again(), 8, compile_again))
    return positions, np.concatenate(logits)


def _say(phase: str) -> None:
    _progress.write(f"{phase}\n")
    _progress.flush()


def main() -> int:
    """Run the process, whose settings are a `Conversion`. Writes each phase and, if it fails, the cause as the last line."""
    job = read_settings(Conversion)
    read_nothing()
    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    warnings.simplefilter("ignore")  # from tracing: branches that depend on values, all of which are constant here
    try:
        convert(Path(job.path), Path(job.folder), trust_remote_code=job.trust_remote_code)
    except Exception as error:  # noqa: BLE001 (an unknown model may raise anything; the parent reports it)
        _say(f"{type(error).__name__}: " * (not isinstance(error, _Unsupported)) + " ".join(str(error).split())[-500:])
        if isinstance(load_failure(ConfigError(), error), LoadFailed):
            return FAILED
        missing = isinstance(error, ImportError) or (isinstance(error, OSError) and error.errno is not None)
        return UNAVAILABLE if missing else REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
