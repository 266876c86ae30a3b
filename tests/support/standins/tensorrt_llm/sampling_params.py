"""Sampling parameters, with the checks that the contract lists."""

from __future__ import annotations

import os
from typing import Any

import torch

from tensorrt_llm.contract import TYPES, Misuse, check_types, dataclass_of


def _validate_guide(self: Any) -> None:
    check_types(self)
    guides = [name for name in ("json", "regex", "grammar", "json_object", "structural_tag") if getattr(self, name)]
    if len(guides) > 1:
        raise ValueError(f"Only one guide can be used for a request, but got {len(guides)}.")
    if not guides:
        raise Misuse("GuidedDecodingParams without a guide are ignored by the engine")


GuidedDecodingParams = dataclass_of("GuidedDecodingParams", _validate=_validate_guide)


def implies_greedy(params: Any) -> bool:
    """The library's rule: no parameter of random sampling is set, or they leave only one token."""
    if params.use_beam_search:
        return False
    given = (params.temperature, params.top_p, params.top_k)
    return given == (None, None, None) or params.top_k == 1 or params.top_p == 0.0 or params.temperature == 0


def _post_init(self: Any) -> None:
    if self.embedding_bias is not None:
        self.embedding_bias = torch.as_tensor(self.embedding_bias, dtype=torch.float32).detach().clone()
    check_types(self)
    if self.pad_id is None:
        self.pad_id = self.end_id
    self.best_of = self.best_of or self.n
    self._validate()


def _validate(self: Any) -> None:
    if self.top_p is not None and not 0 <= self.top_p <= 1:
        raise ValueError(f"require 0 <= top_p <= 1, got top_p={self.top_p}")
    if self.top_k is not None and self.top_k < 0:
        raise ValueError(f"require top_k >= 0, got top_k={self.top_k}")
    if self.temperature is not None and self.temperature < 0:
        raise ValueError(f"require temperature >= 0, got temperature={self.temperature}")
    if self.best_of < self.n:
        raise ValueError(f"best_of ({self.best_of}) cannot be less than n ({self.n})")
    if self.best_of > 1 and implies_greedy(self) and not os.environ.get("TLLM_ALLOW_N_GREEDY_DECODING"):
        raise ValueError(
            "Greedy decoding in the LLM API does not allow multiple returns. "
            f"Please set to best_of=1, got best_of={self.best_of}."
        )
    if self.truncate_prompt_tokens is not None and self.truncate_prompt_tokens < 1:
        raise ValueError(f"truncate_prompt_tokens must be >= 1, got {self.truncate_prompt_tokens}")
    if self.guided_decoding is not None:
        self.guided_decoding._validate()
    self.logprobs = self.logprobs and int(self.logprobs)
    self.prompt_logprobs = self.prompt_logprobs and int(self.prompt_logprobs)


SamplingParams = dataclass_of("SamplingParams", __post_init__=_post_init, _validate=_validate)
TYPES["SamplingParams"] = SamplingParams
