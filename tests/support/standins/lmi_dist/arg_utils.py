"""The engine arguments that LMI passes."""

from __future__ import annotations

import dataclasses
import types
import typing


@dataclasses.dataclass(kw_only=True)
class VllmEngineArgs:
    """The arguments of LMI 0.32, and the draft model of the versions that have one. Types are those of LMI's properties."""

    model: str
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    dtype: str = "auto"
    seed: int = 0
    max_model_len: int | None = None
    max_num_seqs: int = 256
    enforce_eager: bool = False
    gpu_memory_utilization: float = 0.9
    max_num_batched_tokens: int | None = None
    trust_remote_code: bool = False
    load_format: str = "auto"
    quantization: str | None = None
    enable_lora: bool = False
    max_loras: int = 4
    max_lora_rank: int = 16
    fully_sharded_loras: bool = False
    lora_extra_vocab_size: int = 256
    long_lora_scaling_factors: tuple[float, ...] | None = None
    lora_dtype: str = "auto"
    max_cpu_loras: int | None = None
    revision: str | None = None
    enable_chunked_prefill: bool = False
    cpu_offload_gb: float = 0
    enable_prefix_caching: bool = False
    disable_sliding_window: bool = False
    limit_mm_per_prompt: dict[str, int] | None = None
    use_passive_workers: bool = False
    tokenizer_mode: str = "auto"
    draft_model: str | None = None
    speculate_length: int = 5
    draft_model_tp_size: int = 1

    def __post_init__(self) -> None:
        for name, annotation in typing.get_type_hints(type(self)).items():
            check_type(f"{type(self).__name__}.{name}", getattr(self, name), annotation)


def check_type(name: str, value: object, annotation: object) -> None:
    """Raise `TypeError` unless `value` matches a simple annotation. The contents of containers are not checked."""
    choices = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    plain = tuple(typing.get_origin(choice) or choice for choice in choices)
    if isinstance(value, int) and not isinstance(value, bool) and float in plain:
        return
    if not isinstance(value, plain) or (isinstance(value, bool) and bool not in plain):
        raise TypeError(f"{name} must be {annotation}, got {value!r:.80}")
