"""The parts of `lmi_dist` that LMI 0.30 to 0.32 call. The package itself is not public.

The calls are in `rolling_batch/lmi_dist_rolling_batch.py` and `rolling_batch_vllm_utils.py` of djl-serving. The outputs
are those of vLLM 0.6, which the package contains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol


class Logprob(Protocol):
    """The log probability of one token at one position."""

    @property
    def logprob(self) -> float:
        """The natural logarithm of the probability."""


class CompletionOutput(Protocol):
    """The sequence so far, or only its new tokens if `RequestParams.output_kind` is set to DELTA.

    `logprobs` has one entry per token: the most likely ones and the sampled one, whatever its rank.
    """

    @property
    def token_ids(self) -> Sequence[int]:
        """Includes the end-of-sequence id."""

    @property
    def logprobs(self) -> Sequence[Mapping[int, Logprob]] | None:
        """None unless requested."""

    @property
    def finish_reason(self) -> str | None:
        """One of length, stop and abort."""

    @property
    def stop_reason(self) -> int | str | None:
        """The stop id that matched, or None for the model's own end-of-sequence id."""


class RequestOutput(Protocol):
    """The output of `Engine.step` for a request. It may have no tokens while a long prompt is computed in chunks."""

    @property
    def request_id(self) -> str:
        """`Request.id`."""

    @property
    def outputs(self) -> Sequence[CompletionOutput]:
        """One for each of `RequestParams.n`."""

    @property
    def prompt_logprobs(self) -> Sequence[Mapping[int, Logprob] | None] | None:
        """One entry per prompt token, the first is None. Repeated in every output of the request."""


class ModelConfig(Protocol):
    """The model as vLLM describes it."""

    @property
    def max_model_len(self) -> int:
        """Maximum length of prompt and answer together."""


class Preprocessor(Protocol):
    """Holds the tokenizer and the model's configuration."""

    @property
    def model_config(self) -> ModelConfig:
        """The model's configuration in vLLM."""


class Engine(Protocol):
    """What `lmi_dist.init_engine.engine_from_args` returns."""

    @property
    def preprocessor(self) -> Preprocessor:
        """Turns text into tokens."""

    def add_requests(self, requests: list[Any]) -> None:
        """Take `lmi_dist.api.Request`s."""

    def step(self) -> Sequence[RequestOutput]:
        """Advance every request."""

    def reset(self, request_ids: Iterable[str]) -> None:
        """Abort these requests. LMI uses no other way to do it."""

    def add_lora(self, lora_request: object) -> bool:
        """Load a `vllm.lora.request.LoRARequest`. Returns False if that failed."""
