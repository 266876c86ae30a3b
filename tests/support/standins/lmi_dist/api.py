"""Requests and their sampling parameters."""

from __future__ import annotations

import enum
import typing

import msgspec

from lmi_dist.arg_utils import check_type


class RequestOutputKind(enum.Enum):
    """Like vLLM's: all tokens so far, only the new ones, or nothing before the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class CumulativeRequestParams(msgspec.Struct, kw_only=True):
    """The fields of vLLM's `SamplingParams` of that time that matter without text. Outputs are cumulative."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] | None = None

    def __post_init__(self) -> None:
        for name, annotation in typing.get_type_hints(type(self)).items():
            check_type(f"RequestParams.{name}", getattr(self, name), annotation)
        if self.top_k < -1 or self.top_k == 0:
            raise ValueError(f"top_k must be -1 (disable), or at least 1, got {self.top_k}.")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}.")


class RequestParams(CumulativeRequestParams, kw_only=True):
    """For the versions whose outputs may be deltas."""

    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE


class Request(msgspec.Struct, kw_only=True):
    """A request. The prompt is vLLM's `TokensPrompt`."""

    id: str
    prompt: dict[str, list[int]]
    params: CumulativeRequestParams
    lora_request: object = None

    def __post_init__(self) -> None:
        check_type("Request.id", self.id, str)
        check_type("Request.params", self.params, CumulativeRequestParams)
        if list(self.prompt) != ["prompt_token_ids"]:
            raise TypeError(f"Request.prompt must be a TokensPrompt, got {self.prompt!r:.80}")
        if self.lora_request is not None and type(self.lora_request).__module__ != "vllm.lora.request":
            raise TypeError(f"Request.lora_request must be vLLM's LoRARequest, got {self.lora_request!r:.80}")
