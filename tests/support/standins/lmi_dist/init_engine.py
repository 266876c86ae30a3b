"""The engine, which echoes prompts."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lmi_dist.api import Request, RequestOutputKind
from lmi_dist.arg_utils import VllmEngineArgs, check_type

STEPS_OF_A_PROMPT = 8
"""Prompt tokens in a step with chunked prefill."""


@dataclasses.dataclass(frozen=True)
class Logprob:
    """Like vLLM's."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclasses.dataclass
class CompletionOutput:
    """Like vLLM's, without text."""

    index: int
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None = None
    stop_reason: int | None = None


@dataclasses.dataclass
class RequestOutput:
    """Like vLLM's."""

    request_id: str
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool


@dataclasses.dataclass
class ModelConfig:
    """Like vLLM's. The maximum length is the option's, or else the checkpoint's."""

    hf_config: dict[str, Any]
    max_model_len: int


@dataclasses.dataclass
class Preprocessor:
    """Holds the tokenizer and the model's configuration, which LMI reads here."""

    model_config: ModelConfig


def engine_from_args(engine_args: VllmEngineArgs) -> Engine:
    """Load the model."""
    check_type("engine_args", engine_args, VllmEngineArgs)
    config = json.loads((Path(engine_args.model) / "config.json").read_text(encoding="utf-8"))
    length = engine_args.max_model_len or config["max_position_embeddings"]
    return Engine(engine_args, Preprocessor(ModelConfig(config, length)))


class _Job:
    def __init__(self, request: Request) -> None:
        self.request = request
        self.prompt = request.prompt["prompt_token_ids"]
        self.prefilled = 0
        self.adapter: int = getattr(request.lora_request, "lora_int_id", 0)
        self.token_ids: list[int] = []
        self.logprobs: list[dict[int, Logprob]] = []


class Engine:
    """Steps all requests. `fail_next_step` is for tests."""

    def __init__(self, args: VllmEngineArgs, preprocessor: Preprocessor) -> None:
        self.args = args
        self.preprocessor = preprocessor
        self.fail_next_step = False
        self.submitted: list[Request] = []
        self.adapters: dict[int, object] = {}
        self._config = preprocessor.model_config
        self._jobs: dict[str, _Job] = {}

    def add_requests(self, requests: list[Request]) -> None:
        """Add requests. LMI never uses an id twice at the same time."""
        check_type("requests", requests, list)
        for request in requests:
            check_type("request", request, Request)
            prompt = request.prompt["prompt_token_ids"]
            if not 0 < len(prompt) < self._config.max_model_len:
                raise AssertionError(f"the engine ignores a prompt of {len(prompt)} tokens")
            if not all(0 <= token < self._config.hf_config["vocab_size"] for token in prompt):
                raise AssertionError("a token of the prompt is outside the vocabulary")
            if request.id in self._jobs:
                raise AssertionError(f"request {request.id} runs already")
            if request.lora_request is not None and request.lora_request not in self.adapters.values():
                raise AssertionError("the adapter has not been added")
            if (request.params.logprobs or 0) > 20:
                raise ValueError(f"Cannot request more than 20 logprobs, got {request.params.logprobs}.")
            self.submitted.append(request)
            self._jobs[request.id] = _Job(request)

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._jobs)

    def reset(self, request_ids: Iterable[str]) -> None:
        """Abort."""
        if isinstance(request_ids, str):
            raise TypeError("request_ids must be several, not one text")
        for request_id in request_ids:
            del self._jobs[request_id]

    def add_lora(self, lora_request: Any) -> bool:
        """Load an adapter."""
        if not self.args.enable_lora:
            raise RuntimeError("LoRA is not enabled.")
        new = lora_request.lora_int_id not in self.adapters
        self.adapters[lora_request.lora_int_id] = lora_request
        return new and Path(lora_request.lora_path, "adapter_config.json").exists()

    def step(self) -> list[RequestOutput]:
        """Give each of the first `max_num_seqs` requests a token, or a part of its prompt."""
        if self.fail_next_step:
            raise RuntimeError("CUDA error: an illegal memory access\nwas encountered")
        return [self._advance(job) for job in list(self._jobs.values())[: self.args.max_num_seqs]]

    def _advance(self, job: _Job) -> RequestOutput:
        job.prefilled += STEPS_OF_A_PROMPT if self.args.enable_chunked_prefill else len(job.prompt)
        params = job.request.params
        finish_reason, stop_reason = None, None
        first = len(job.token_ids)
        if job.prefilled >= len(job.prompt):
            finish_reason, stop_reason = self._generate(job)
        if finish_reason is not None:
            del self._jobs[job.request.id]
        delta = getattr(params, "output_kind", None) is RequestOutputKind.DELTA
        # Cumulative lists go on growing after they have been handed out.
        completion = CompletionOutput(
            index=0,
            token_ids=job.token_ids[first:] if delta else job.token_ids,
            logprobs=None if params.logprobs is None else job.logprobs[first:] if delta else job.logprobs,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
        )
        prompt_logprobs = None
        if params.prompt_logprobs is not None and job.token_ids:
            prompt_logprobs = [None, *(self._logprobs(token, params.prompt_logprobs) for token in job.prompt[1:])]
        return RequestOutput(job.request.id, job.prompt, prompt_logprobs, [completion], finish_reason is not None)

    def _generate(self, job: _Job) -> tuple[str | None, int | None]:
        params = job.request.params
        eos = self._config.hf_config["eos_token_id"]
        token_id = self._next_token(job, eos)
        job.token_ids.append(token_id)
        if params.logprobs is not None:
            job.logprobs.append(self._logprobs(token_id, params.logprobs))
        if token_id == eos and not params.ignore_eos:
            return "stop", None
        if token_id in (params.stop_token_ids or ()):
            return "stop", token_id
        room = self._config.max_model_len - len(job.prompt)
        return ("length", None) if len(job.token_ids) >= min(room, params.max_tokens or room) else (None, None)

    def _next_token(self, job: _Job, eos: int) -> int:
        params, count = job.request.params, len(job.token_ids)
        if count >= max(len(job.prompt), params.min_tokens) and not params.ignore_eos:
            return eos
        shift = job.adapter + (0 if params.temperature == 0 else 1 + (params.seed or 0) + count)
        return int((job.prompt[count % len(job.prompt)] + shift) % self._config.hf_config["vocab_size"])

    def _logprobs(self, token_id: int, count: int) -> dict[int, Logprob]:
        size = self._config.hf_config["vocab_size"]
        return {
            (token_id + rank - 1) % size: Logprob(-math.log(1 + rank), rank) for rank in range(1, max(count, 1) + 1)
        }
