"""Typical sampling, which vLLM leaves to logits processors. This module is imported by vLLM's workers."""

from __future__ import annotations

import math

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor, RequestLogitsProcessor

from backends.transformers.sampler import outside_typical_p

TYPICAL_P = "typical_p"
"""Its name in `SamplingParams.extra_args`."""


class TypicalLogitsProcessor(AdapterLogitsProcessor):
    """Keeps the tokens of about average information, for the requests that ask for it."""

    def is_argmax_invariant(self) -> bool:
        """To vLLM this means: after the temperature, and never for a greedy request."""
        return True

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """The filter of one request, None where it has none."""
        typical_p = (params.extra_args or {}).get(TYPICAL_P)
        if typical_p is None:
            return None

        def keep_typical(_output_token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            return logits.masked_fill(outside_typical_p(logits[None], [typical_p])[0], -math.inf)

        return keep_typical
