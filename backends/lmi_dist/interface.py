"""What is known of `lmi_dist`: the parts of it that LMI 0.30 to 0.32 call. The package itself is not public.

LMI's callers are `rolling_batch/lmi_dist_rolling_batch.py` and `rolling_batch_vllm_utils.py` of djl-serving. The outputs
are those of the vLLM of that time (0.6), which the package brings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol


class Logprob(Protocol):
    """Of one token at one position."""

    @property
    def logprob(self) -> float:
        """Its natural logarithm."""


class CompletionOutput(Protocol):
    """A sequence so far, or what is new of it where `RequestParams.output_kind` was set to that.

    `logprobs` has one entry for each of `token_ids`: the best ones, and the sampled one whatever its rank.
    """

    @property
    def token_ids(self) -> Sequence[int]:
        """The end-of-sequence id is among them."""

    @property
    def logprobs(self) -> Sequence[Mapping[int, Logprob]] | None:
        """None unless asked for."""

    @property
    def finish_reason(self) -> str | None:
        """One of length, stop and abort."""

    @property
    def stop_reason(self) -> int | str | None:
        """The stop id that matched, None for the model's own end of sequence."""


class RequestOutput(Protocol):
    """What `Engine.step` says of a request; with chunks of a long prompt, there may be no tokens in it yet."""

    @property
    def request_id(self) -> str:
        """`Request.id`."""

    @property
    def outputs(self) -> Sequence[CompletionOutput]:
        """One for each of `RequestParams.n`."""

    @property
    def prompt_logprobs(self) -> Sequence[Mapping[int, Logprob] | None] | None:
        """One entry for each prompt token, the first None; with every output of the request."""


class ModelConfig(Protocol):
    """VLLM's description of the model."""

    @property
    def max_model_len(self) -> int:
        """Of prompt and answer together."""


class Preprocessor(Protocol):
    """Has the tokenizer too."""

    @property
    def model_config(self) -> ModelConfig:
        """As vLLM has it."""


class Engine(Protocol):
    """What `lmi_dist.init_engine.engine_from_args` returns."""

    @property
    def preprocessor(self) -> Preprocessor:
        """What turns text into tokens, and knows the model."""

    def add_requests(self, requests: list[Any]) -> None:
        """Take `lmi_dist.api.Request`s."""

    def step(self) -> Sequence[RequestOutput]:
        """Advance every request."""

    def reset(self, request_ids: Iterable[str]) -> None:
        """Abort these; LMI knows no other way to."""

    def add_lora(self, lora_request: object) -> bool:
        """Load a `vllm.lora.request.LoRARequest`. Returns False where that did not happen."""
