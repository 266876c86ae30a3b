"""Typical sampling as a logits processor, one for each of vLLM's two model runners. Imported by vLLM's workers."""

from __future__ import annotations

import math

import numpy as np
import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor, RequestLogitsProcessor
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor, LogitsProcRequestState

from backends.sampling.nucleus import outside_typical_p

TYPICAL_P = "typical_p"
"""The key in `SamplingParams.extra_args`."""


class TypicalV1(AdapterLogitsProcessor):
    """For the first model runner, which divides by the temperature before it calls processors."""

    def is_argmax_invariant(self) -> bool:
        """True makes vLLM call this after applying the temperature, and never for greedy requests."""
        return True

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """Return the filter for one request, or None if it does not set `typical_p`."""
        typical_p = (params.extra_args or {}).get(TYPICAL_P)
        if typical_p is None:
            return None

        def keep_typical(_output_token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            outside = outside_typical_p(logits[None], torch.tensor([[typical_p]], device=logits.device))
            return logits.masked_fill(outside[0], -math.inf)

        return keep_typical


class TypicalV2(LogitsProcessor):
    """For the second model runner, which calls processors before applying the temperature, and for greedy requests too.

    It costs nothing until a request uses it, and it never makes the GPU wait for the CPU.
    """

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState) -> None:
        super().__init__(vllm_config, req_states)
        self._device = req_states.device
        self._masses = np.ones(req_states.max_num_reqs, dtype=np.float32)
        self._temperatures = np.ones(req_states.max_num_reqs, dtype=np.float32)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Store the request's values in its slot. Returns whether it uses `typical_p`."""
        typical_p = (sampling_params.extra_args or {}).get(TYPICAL_P)
        wanted = typical_p is not None and sampling_params.temperature > 0
        self._masses[req_idx] = typical_p if wanted else 1.0
        self._temperatures[req_idx] = sampling_params.temperature
        return wanted

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        """Filter the rows of requests that set `typical_p`. Without speculative decoding each request has one row."""
        rows = np.flatnonzero(self._masses[ctx.idx_mapping_np] < 1.0)
        if not len(rows):
            return logits
        slots = ctx.idx_mapping_np[rows]
        index = self._on_device(rows, torch.int64)
        scores = logits[index]
        outside = outside_typical_p(
            scores / self._on_device(self._temperatures[slots], torch.float32)[:, None],
            self._on_device(self._masses[slots], torch.float32)[:, None],
        )
        logits[index] = scores.masked_fill(outside, -math.inf)
        return logits

    def _on_device(self, values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        return async_tensor_h2d(values.tolist(), dtype=dtype, device=self._device)
