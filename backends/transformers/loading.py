"""Loads a model and chooses how to run it: as fast as a probe of each way shows that the results are the same."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    BitsAndBytesConfig,
)

from backends.cpu_dtype import choose_cpu_dtype
from backends.paged.options import DEFAULT_MAX_LORAS
from backends.paged.probe import Probe
from backends.transformers import DECLARATION
from backends.transformers.attention import ATTENTION_NAME
from backends.transformers.fallback import SequentialRunner
from backends.transformers.kv_cache import BLOCK_SIZE
from backends.transformers.lora_layers import AdaptableLayers, LoraLayers
from backends.transformers.options import TransformersOptions
from backends.transformers.packing import LinearInputs, can_pack, pack, unpack
from backends.transformers.rolling import RollingRunner
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.load_failure import load_failure
from lmi_handlers.model_files.without_adapters import without_adapters

logger = logging.getLogger(__name__)

DTYPES: dict[str, torch.dtype | None] = {
    "auto": None,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}

QUANTIZATIONS: dict[str, dict[str, bool]] = {
    "bitsandbytes8": {"load_in_8bit": True},
    "bitsandbytes4": {"load_in_4bit": True},
}
"""Values of option.quantize, under LMI's names, with the arguments of transformers' `BitsAndBytesConfig`."""

# Maximum relative error of the logits, compared with the model's own. Rounding gives about 1e-6, or 1e-2 for 16-bit
# types. A missing mask or bias gives much more.
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4}
_TOLERANCE_HALF = 0.05
# The same for the last runner, after which only a refusal is left. In 16 bits, a near tie between two experts may be
# decided differently, and recurrent models compute a prompt and a single token in different ways.
_TOLERANCE_STEPS = {torch.float32: 1e-2, torch.float64: 1e-2}
_TOLERANCE_STEPS_HALF = 0.3


def load_model(path: Path, properties: ServingProperties, auto_class: Callable[[Any], Any] | None = None) -> Any:
    """Load the model in `path` for inference. Raises `ConfigError`, or `LoadFailed` if a retry may help.

    `auto_class` returns the library's class for a configuration. It defaults to one that generates text.
    """
    DECLARATION.check_choices(properties)
    device_map = properties.options_of(TransformersOptions).device_map
    if device_map is None and torch.cuda.is_available():
        # As in LMI, accelerate divides the layers among several GPUs.
        device_map = "auto" if properties.tensor_parallel_degree != 1 and torch.cuda.device_count() > 1 else "cuda"
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=properties.trust_remote_code)
        options: dict[str, Any] = {}
        if getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None:
            # The library's default attention silently ignores the soft cap, but the model was trained with it.
            options["attn_implementation"] = "eager"
        if properties.quantize is not None:
            options["quantization_config"] = BitsAndBytesConfig(**QUANTIZATIONS[properties.quantize])  # type: ignore[no-untyped-call]  # the library's own
        with without_adapters():
            model = (auto_class or _generating_class)(config).from_pretrained(
                path,
                config=config,
                dtype=_choose_dtype(DTYPES[properties.dtype], config, device_map),
                device_map=device_map,
                trust_remote_code=properties.trust_remote_code,
                **options,
            )
    except (ImportError, KeyError, MemoryError, OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        verdict = ConfigError(f"option.model_id: {path} cannot be loaded by transformers: {reason}")
        raise load_failure(verdict, error) from error
    model.train(False)
    return model


def _generating_class(config: Any) -> Any:
    if config.is_encoder_decoder:
        raise ConfigError(
            f"option.model_id: {config.model_type} is an encoder-decoder model; only causal models are supported"
        )
    takes_images = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return AutoModelForImageTextToText if takes_images else AutoModelForCausalLM


def _choose_dtype(asked: torch.dtype | None, config: Any, device_map: str | None) -> torch.dtype | str:
    on_cpu = device_map in (None, "cpu") or not torch.accelerator.is_available()
    if on_cpu:
        return choose_cpu_dtype(asked, config.dtype or config.get_text_config().dtype)
    return asked or "auto"


def position_limit(model: Any) -> int | None:
    """Return how many tokens the model has positions for, or None if it has no such limit."""
    limit: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return None if limit is None else limit - _first_position(model)


def _first_position(model: Any) -> int:
    """Return the position of the first token. RoBERTa and its relatives leave out those up to the padding token's id."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return int(module.padding_idx) + 1
    return 0


def choose_runner(
    model: Any, max_model_len: int, num_blocks: Callable[[int], int], max_loras: int = DEFAULT_MAX_LORAS
) -> RollingRunner | SequentialRunner:
    """Pack the model's weights if possible. Returns the fastest runner that gives the same logits as the model.

    Raises `ConfigError` if none does, or `LoadFailed` if a retry may help. `num_blocks` returns the size
    of the KV cache for a number of bytes per block.
    """
    expected = pack_if_equal(model, lambda: _stock_logits(model))
    reason = _cannot_flatten(model.config.get_text_config(), max_model_len)
    if not model._supports_attention_backend:  # noqa: SLF001 (the library has no public name for it)
        reason = f"{type(model).__name__} does not support custom attention functions"
    if reason is None:
        stock = model.config._attn_implementation  # noqa: SLF001 (there is no public way to read it)
        model.set_attn_implementation(ATTENTION_NAME)
        probe = RollingRunner(model, len(_ROLLING_PROBE.lengths), LoraLayers(model, {}))
        with AdaptableLayers(model) as adaptable:
            reason = _rolling_difference(probe, expected)
        reason = reason or _window_missing(model.config.get_text_config(), probe.windows, max_model_len)
        if reason is None:
            return RollingRunner(model, num_blocks(probe.block_bytes), LoraLayers(model, adaptable.modules, max_loras))
        model.set_attn_implementation(stock)
    logger.warning(
        "no rolling batch for this model; each sequence is computed separately",
        extra={"model_type": model.config.model_type, "reason": reason},
    )
    return _sequential_runner(model, num_blocks, max_loras, expected)


def pack_if_equal(model: Any, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Pack the model's weights if possible, unless that changes the results of `compute`. Returns these results."""
    with LinearInputs(model) as inputs:
        expected = compute()
    if can_pack(model):
        pack(model, inputs.siblings)
        try:
            reason = _difference(compute(), expected, _tolerance(expected))
        except Exception as error:  # noqa: BLE001 (an unknown model may raise anything)
            reason = f"{type(error).__name__}: {error}"
        if reason:
            logger.warning("the weights are not packed, because the results would differ", extra={"reason": reason})
            unpack(model)
    return expected


def sequential_runner(
    model: Any, num_blocks: Callable[[int], int], max_loras: int = DEFAULT_MAX_LORAS
) -> SequentialRunner:
    """Return the runner for any model, without packing its weights.

    Raises `ConfigError` if its logits are not the model's own, or `LoadFailed` if a retry may help.
    """
    return _sequential_runner(model, num_blocks, max_loras, _stock_logits(model))


def _sequential_runner(
    model: Any, num_blocks: Callable[[int], int], max_loras: int, expected: torch.Tensor
) -> SequentialRunner:
    """Check the runner against the logits `expected`. A forward of a block of tokens tells how large a block is."""
    _check_sequential(model, SequentialRunner(model, len(_SEQUENTIAL_PROBE.lengths), LoraLayers(model, {})), expected)
    tokens = torch.ones((1, BLOCK_SIZE), dtype=torch.long, device=model.get_input_embeddings().weight.device)
    with torch.inference_mode(), AdaptableLayers(model) as adaptable:
        cache = getattr(model(input_ids=tokens, use_cache=True), "past_key_values", None)
    layers = getattr(cache, "layers", ())
    stored = [getattr(layer, name, None) for layer in layers for name in ("keys", "values")]
    # A recurrent state is as large for one token as for many. It is not counted.
    bytes_per_block = sum(x.nbytes for x in stored if x is not None)
    lora = LoraLayers(model, adaptable.modules, max_loras)
    return SequentialRunner(model, num_blocks(max(1, bytes_per_block)), lora)


def _cannot_flatten(config: Any, max_model_len: int) -> str | None:
    """Return why sequences of different lengths cannot share a forward pass with this `config`, None if they can."""
    parameters = getattr(config, "rope_parameters", None) or {}
    # Either one set of parameters, or one per layer type.
    for rope in [parameters, *(value for value in parameters.values() if isinstance(value, dict))]:
        trained = rope.get("original_max_position_embeddings") or getattr(config, "max_position_embeddings", None)
        if rope.get("rope_type") in ("dynamic", "longrope") and max_model_len > (trained or 0):
            return f"its {rope['rope_type']} rotary embedding depends on the longest sequence in the batch"
    return None


def _window_missing(config: Any, windows: dict[int, int | None], max_model_len: int) -> str | None:
    """Return what is wrong with the layers' sliding windows, None if nothing. The probe is too short to show it."""
    types = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    if types is None:
        slides = window is not None and getattr(config, "use_sliding_window", True)
        types = ["sliding_attention" if slides else "full_attention"] * len(windows)
    for layer, kind in enumerate(types):
        if kind not in ("full_attention", "sliding_attention"):
            return f"layer {layer} is of type {kind}"
        expected = window if kind == "sliding_attention" else None
        asked = windows.get(layer)
        if min(asked or max_model_len, max_model_len) != min(expected or max_model_len, max_model_len):
            return f"layer {layer} asks for a window of {asked}, its configuration says {expected}"
    return None


# A prompt in pieces, of which the first ends without logits; a second one joins, both decode, one is left.
_ROLLING_PROBE = Probe(
    lengths=(9, 6),
    tables=((0,), (1,)),
    steps=(
        ((0, 0, 5, 0),),
        ((0, 5, 8, 2), (1, 0, 3, 1)),
        ((0, 8, 9, 1), (1, 3, 4, 1)),
        ((1, 4, 5, 1),),
        ((1, 5, 6, 1),),
    ),
)
# The same tokens, but whole prompts. The second is all asked for, and joins while the first one decodes.
_SEQUENTIAL_PROBE = Probe(
    lengths=_ROLLING_PROBE.lengths,
    tables=_ROLLING_PROBE.tables,
    steps=(
        ((0, 0, 5, 1),),
        ((0, 5, 6, 1), (1, 0, 3, 3)),
        ((0, 6, 7, 1), (1, 3, 4, 1)),
        ((0, 7, 8, 1), (1, 4, 5, 1)),
        ((0, 8, 9, 1), (1, 5, 6, 1)),
    ),
)


def _stock_logits(model: Any) -> torch.Tensor:
    """Return the model's own logits for each token of the probes, which are computed without a cache."""
    embeddings = model.get_input_embeddings().weight
    with torch.inference_mode():
        return torch.cat(
            [
                model(input_ids=torch.tensor([token_ids], device=embeddings.device), use_cache=False).logits[0]
                for token_ids in _ROLLING_PROBE.token_ids(embeddings.shape[0])
            ]
        )


def _rolling_difference(runner: RollingRunner, expected: torch.Tensor) -> str | None:
    """Return what is wrong with the runner's logits, or None. `expected` are the model's own for the probe."""
    try:
        positions, logits = _ROLLING_PROBE.run(runner)
    except Exception as error:  # noqa: BLE001 (an unknown model may raise anything; there is a fallback)
        return f"{type(error).__name__}: {error}"
    return _difference(torch.cat(logits), expected[positions], _tolerance(expected))


def _check_sequential(model: Any, runner: SequentialRunner, expected: torch.Tensor) -> None:
    """Raise `ConfigError`, or `LoadFailed` if a retry may help, unless the runner's logits are the model's own."""
    subject = f"option.model_id: {type(model).__name__} cannot be served by the transformers backend"
    try:
        positions, logits = _SEQUENTIAL_PROBE.run(runner)
    except Exception as error:  # an unknown model may raise anything
        verdict = ConfigError(f"{subject}: token by token, it raises {type(error).__name__}: {error}")
        raise load_failure(verdict, error) from error
    tolerance = _TOLERANCE_STEPS.get(expected.dtype, _TOLERANCE_STEPS_HALF)
    if reason := _difference(torch.cat(logits), expected[positions], tolerance):
        raise ConfigError(f"{subject}: with its cache, {reason}")


def _tolerance(expected: torch.Tensor) -> float:
    return _TOLERANCE.get(expected.dtype, _TOLERANCE_HALF)


def _difference(logits: torch.Tensor, expected: torch.Tensor, tolerance: float) -> str | None:
    """Return what is wrong with logits or vectors, or None if they match `expected`."""
    distance = (logits.float() - expected.float()).norm(dim=-1) / expected.float().norm(dim=-1)
    worst = float(distance.max())
    logger.debug("probe", extra={"distance": worst})
    return None if worst <= tolerance else f"its logits are off by {worst:.2g} of their size"
