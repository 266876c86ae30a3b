"""Memory requirements of a model, from its files: weights, and the KV cache of concurrent requests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.gguf import read_gguf_header
from lmi_handlers.model_files.needed import weight_bytes

_USUAL_LENGTH = 4096
"""Tokens per request that are assumed for a batch if `max_model_len` is not set: few use the whole context."""
_USUAL_BATCH = 8
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "fp32": 4, "fp16": 2, "bf16": 2, "int8": 1, "fp8": 1}
_QUANTISED_BITS = {"int4": 4, "awq": 4, "gptq": 4, "marlin": 4, "bitsandbytes": 4, "mxfp4": 4, "nvfp4": 4, "int8": 8}
_QUANTISED_BITS |= {"fp8": 8, "bitsandbytes4": 4, "bitsandbytes8": 8, "smoothquant": 8, "compressed-tensors": 8}
_GGUF_NAMES = {
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
}
"""llama.cpp's names, after the architecture -> transformers' names."""


class ModelSize(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes. `heads` is what tensor parallelism divides, 0 if unknown. `explained` says where the figures are from."""

    weights: int
    kv_cache: int
    heads: int
    kv_heads: int
    is_bfloat16: bool
    explained: tuple[str, ...]


def model_size(
    model: Path | None,
    config_file: Path | None,
    properties: ServingProperties,
    *,
    max_model_len: int | None,
    batch: int | None,
) -> ModelSize | None:
    """Return the size of a model: a folder or a `.gguf` file, or only the config.json of one. None if neither says it.

    `max_model_len` and `batch` default to the options. Raises `ConfigError` if config.json is not valid.
    """
    config = _config(model, config_file)
    files = 0 if model is None else weight_bytes(model)
    dtype = str(config.get("torch_dtype") or config.get("dtype") or "")
    if files:
        weights, origin = _as_loaded(files, config, properties, dtype)
    elif config and (parameters := _parameters(config)):
        inner, others = parameters
        bits = _bits(config, properties, dtype)
        is_mxfp4 = _method(config, properties) == "mxfp4"  # of the experts only
        weights = (inner * bits + others * (16 if is_mxfp4 else bits)) // 8
        origin = f"about {(inner + others) / 1e9:.1f} billion parameters by config.json, {bits} bits each"
        origin += ", 16 for attention and embeddings" if is_mxfp4 else ""
    else:
        return None
    tokens, asked = _tokens(config, properties, max_model_len, batch)
    per_token = 0 if properties.embeds else _kv_bytes_per_token(config, properties, dtype)
    kv_origin = (
        f"{asked}, {per_token / 1024:.0f} KiB per token" if per_token else "none is needed, or its size is not known"
    )
    return ModelSize(
        weights=weights,
        kv_cache=tokens * per_token,
        heads=_number(config, "num_attention_heads", "n_head"),
        kv_heads=1 if config.get("kv_lora_rank") else _kv_heads(config),  # each GPU has the whole latent vector
        is_bfloat16=dtype == "bfloat16" and properties.dtype in ("auto", "bf16"),
        explained=(f"weights {gib(weights)}: {origin}", f"KV cache {gib(tokens * per_token)}: {kv_origin}"),
    )


def gib(size: float) -> str:
    """Return a size in bytes for people."""
    return f"{size / 2**30:.1f} GiB"


def _config(model: Path | None, config_file: Path | None) -> dict[str, Any]:
    """Return the model's configuration by transformers' names. That of a multimodal model's text part takes precedence."""
    if model is not None and model.is_file():
        return _gguf_config(model)
    config = {} if config_file is None else _read(config_file)
    text = config.get("text_config")
    return (
        config | {key: value for key, value in text.items() if value is not None} if isinstance(text, dict) else config
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{file} must hold a JSON object")
    return config


def _gguf_config(file: Path) -> dict[str, Any]:
    header = read_gguf_header(file)
    prefix = f"{header.architecture}."
    names = {theirs: ours for ours, theirs in _GGUF_NAMES.items()}
    found = {theirs: header.metadata.get(prefix + ours) for theirs, ours in names.items()}
    return {  # some files have a value for each layer
        name: max(value) if isinstance(value, list | tuple) else value
        for name, value in found.items()
        if value is not None
    }


def _as_loaded(files: int, config: Mapping[str, Any], properties: ServingProperties, dtype: str) -> tuple[int, str]:
    """Return the weights' size in memory: as in the files, unless options change the type of weights that are not quantised."""
    origin = f"the files have {gib(files)}"
    stored, bits = 8 * _BYTES.get(dtype, 0), _bits(config, properties, dtype)
    if config.get("quantization_config") or stored in (0, bits):
        return files, origin
    return files * bits // stored, f"{origin} in {dtype}, loaded with {bits} bits per weight"


def _bits(config: Mapping[str, Any], properties: ServingProperties, dtype: str) -> int:
    """Return the bits per weight in memory."""
    stored = config.get("quantization_config")
    if isinstance(stored, dict):
        loaded = next((bits for bits in (4, 8) if stored.get(f"load_in_{bits}bit")), None)
        bits = stored.get("bits") or loaded
        return int(bits or _QUANTISED_BITS.get(str(_method(config, properties)), 8))
    if properties.quantize is not None:
        return _QUANTISED_BITS.get(properties.quantize, 8)
    return 8 * _BYTES.get(dtype if properties.dtype == "auto" else properties.dtype, 2)


def _method(config: Mapping[str, Any], properties: ServingProperties) -> str | None:
    stored = config.get("quantization_config")
    return stored.get("quant_method") if isinstance(stored, dict) else properties.quantize


def _parameters(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return about how many parameters a decoder has in its feed-forward layers or experts, and elsewhere.

    Norms and biases are left out.
    """
    hidden = _number(config, "hidden_size", "n_embd", "d_model")
    layers = _number(config, "num_hidden_layers", "n_layer")
    heads = _number(config, "num_attention_heads", "n_head")
    if not (hidden and layers and heads):
        return None
    head = _number(config, "head_dim") or hidden // heads
    attention = 2 * hidden * head * (heads + _kv_heads(config))
    inner = _number(config, "intermediate_size", "n_inner") or 4 * hidden
    matrices = 3 if "intermediate_size" in config else 2  # gated or not
    experts = _number(config, "num_local_experts", "num_experts", "n_routed_experts")
    if experts:
        inner = _number(config, "moe_intermediate_size") or inner
    embeddings = _number(config, "vocab_size") * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return layers * matrices * hidden * inner * max(experts, 1), embeddings + layers * attention


def _tokens(
    config: Mapping[str, Any], properties: ServingProperties, max_model_len: int | None, batch: int | None
) -> tuple[int, str]:
    """Return how many tokens the cache should hold, and why."""
    asked = max_model_len or properties.max_model_len
    length = asked or _number(config, "max_position_embeddings", "n_positions") or _USUAL_LENGTH
    usual = asked or min(length, _USUAL_LENGTH)
    sequences = batch or properties.max_rolling_batch_size or _USUAL_BATCH
    if length > sequences * usual:
        return length, f"one request of {length} tokens"
    return sequences * usual, f"{sequences} requests of {usual} tokens"


def _kv_bytes_per_token(config: Mapping[str, Any], properties: ServingProperties, dtype: str) -> int:
    layers = _number(config, "num_hidden_layers", "n_layer")
    heads = _number(config, "num_attention_heads", "n_head")
    size = 1 if (properties.kv_cache_dtype or "").startswith(("fp8", "int8")) else min(_BYTES.get(dtype, 2), 2)
    if latent := _number(config, "kv_lora_rank"):  # DeepSeek's latent attention: one vector for keys and values
        return layers * (latent + _number(config, "qk_rope_head_dim")) * size
    head = _number(config, "head_dim") or (_number(config, "hidden_size", "n_embd", "d_model") // heads if heads else 0)
    return 2 * layers * _kv_heads(config) * head * size


def _kv_heads(config: Mapping[str, Any]) -> int:
    if config.get("multi_query") and not config.get("new_decoder_architecture"):  # GPTBigCode, the first Falcon
        return 1
    return _number(config, "num_key_value_heads", "num_kv_heads", "num_attention_heads", "n_head")


def _number(config: Mapping[str, Any], *names: str) -> int:
    """Return the first of these that is a positive number, or 0."""
    values = (config.get(name) for name in names)
    return next((value for value in values if isinstance(value, int) and value > 0), 0)
