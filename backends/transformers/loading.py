"""Loading a model and choosing how to run it: by the rolling batch where a probe shows that it computes the same."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from backends.transformers.attention import ATTENTION_NAME
from backends.transformers.fallback import SequentialRunner
from backends.transformers.packing import LinearInputs, can_pack, pack, unpack
from backends.transformers.rolling import RollingRunner
from backends.transformers.runner import Runner
from backends.transformers.sampler import SamplerState
from backends.transformers.sequence import Sequence, next_chunk
from lmi_handlers.errors import ConfigError
from lmi_handlers.properties import ServingProperties
from lmi_handlers.request import TokenRequest
from lmi_handlers.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

DTYPES: dict[str, torch.dtype | str] = {
    "auto": "auto",
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}

# What a model without a stated limit (ALiBi, a recurrent state) is given when option.max_model_len is not set.
UNBOUNDED_MAX_MODEL_LEN = 4096

# How far logits may be from the model's own, as a part of their size: rounding gives about 1e-6 and 1e-2, a mask or a
# bias left out much more.
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4}
_TOLERANCE_HALF = 0.05


def load_model(path: Path, properties: ServingProperties) -> Any:
    """Load the model in `path` for inference. Raises `ConfigError`."""
    if properties.dtype not in DTYPES:
        raise ConfigError(f"option.dtype: transformers backend takes {', '.join(DTYPES)}, not {properties.dtype}")
    device_map = properties.device_map
    if device_map is None and torch.cuda.is_available():
        device_map = "cuda"
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=properties.trust_remote_code)
        options: dict[str, Any] = {}
        if getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None:
            # The library's default attention leaves the soft cap out without a word; the model was trained with it.
            options["attn_implementation"] = "eager"
        model = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=DTYPES[properties.dtype],
            device_map=device_map,
            trust_remote_code=properties.trust_remote_code,
            **options,
        )
    except (ImportError, KeyError, OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"option.model_id: {path} cannot be loaded by transformers: {reason}") from error
    if model.config.is_encoder_decoder:
        raise ConfigError(f"option.model_id: {model.config.model_type} is an encoder-decoder; a causal model is needed")
    return model.eval()


def choose_max_model_len(config: Any, asked: int | None) -> int:
    """Return `asked` or the model's own limit. Raises `ConfigError` where `asked` is beyond it."""
    limit: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    if asked is None:
        return limit or UNBOUNDED_MAX_MODEL_LEN
    if limit is not None and asked > limit:
        raise ConfigError(f"option.max_model_len: the model takes {limit} tokens at most, not {asked}")
    return asked


def choose_runner(model: Any, max_model_len: int, report: Callable[[str], None]) -> Runner:
    """Pack the model's weights where that helps, and return the fastest runner that computes what the model computes."""
    report("checking the rolling batch")
    probe = _Probe(model)
    with LinearInputs(model) as inputs:
        probe.expect()
    if can_pack(model):
        originals = pack(model, inputs.siblings)
        if reason := probe.difference(probe.stock_logits):
            logger.warning("weights left unpacked", extra={"reason": reason})
            unpack(model, originals)
    if reason := _why_not_rolling(model, max_model_len) or probe.difference(lambda: _switch_on(model, probe, max_model_len)):
        logger.warning(
            "no rolling batch for this model: each sequence is computed by itself",
            extra={"model_type": model.config.model_type, "reason": reason},
        )
        probe.restore()
        return SequentialRunner(model)
    return RollingRunner(model)
