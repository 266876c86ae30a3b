"""LoRA's settings."""

from __future__ import annotations

from tensorrt_llm.contract import check_types, dataclass_of

LoraConfig = dataclass_of("LoraConfig", __post_init__=check_types)
