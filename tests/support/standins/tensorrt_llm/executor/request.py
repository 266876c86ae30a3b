"""The LoRA adapter of a request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorrt_llm.contract import check_types, dataclass_of


def _post_init(self: Any) -> None:
    check_types(self)
    if self.lora_path is not None and not (self.lora_path and Path(self.lora_path).exists()):
        raise ValueError(f"lora_path ({self.lora_path}) does not exist.")
    if self.lora_ckpt_source not in ("hf", "nemo"):
        raise ValueError(f"lora_ckpt_source must be hf or nemo, got {self.lora_ckpt_source}")


LoRARequest = dataclass_of("LoRARequest", keywords=False, __post_init__=_post_init)
