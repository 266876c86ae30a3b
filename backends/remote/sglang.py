"""SGLang's `/generate` with `input_ids`. Written against its published request and response types, and not run."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from backends.json_schema import explicit_json
from backends.remote.client import MAX_EVENT, Client, one_line, rejection
from backends.remote.options import KEY_VARIABLE
from backends.remote.protocol import (
    ASKING,
    Description,
    Error,
    EventReader,
    RemoteModels,
    RemoteProtocol,
    RemoteSequence,
    check_key,
    read,
)
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs

_TOKEN_BYTES = 64
_SEED_BITS = 63

_Logprob = tuple[float | None, int, str | None]
"""The logarithm, the token, and its text if that was asked for."""


class _End(msgspec.Struct):
    type: str
    matched: int | str | list[int] | None = None
    message: str = ""
    status_code: int | None = None


class _Meta(msgspec.Struct):
    completion_tokens: int
    finish_reason: _End | None = None
    cached_tokens: int | None = None
    output_token_logprobs: list[_Logprob] | None = None
    output_top_logprobs: list[list[_Logprob] | None] | None = None


class _Answer(msgspec.Struct):
    output_ids: list[int] = []
    meta_info: _Meta | None = None
    error: Error | None = None


class _ModelInfo(msgspec.Struct):
    model_path: str
    is_generation: bool


class _ServerInfo(msgspec.Struct):
    enable_deterministic_inference: bool = False


class SGLangProtocol(RemoteProtocol):
    """SGLang 0.5. An event has all tokens so far, or with `--incremental-streaming-output` the new ones alone."""

    title = "SGLang"
    path = "/generate"
    unsupported = (
        "typical_p",
        "repetition_penalty",  # would not count the prompt's tokens
        "prompt_logprobs",
        "bad_words",
        "allowed_token_ids",
    )
    max_logprobs = 20
    max_prompt_logprobs = 0

    async def describe(self, client: Client) -> Description | None:
        """`/get_model_info` tells SGLang from others. Without deterministic inference, seeds have no effect there."""
        answer = await client.ask("/get_model_info", seconds=ASKING)
        check_key(answer, KEY_VARIABLE)
        info = read(answer, _ModelInfo)
        if info is None or not info.is_generation:
            return None
        models = read(await client.ask("/v1/models", seconds=ASKING), RemoteModels)
        server = read(await client.ask("/get_server_info", seconds=ASKING), _ServerInfo)
        seeds = server is not None and server.enable_deterministic_inference
        length = models.data[0].max_model_len if models is not None and models.data else None
        return Description(one_line(info.model_path), length, () if seeds else ("seed",))

    def body(self, sequence: RemoteSequence) -> dict[str, Any]:
        """Every parameter is written, because the remote has defaults of its own."""
        params = sequence.params
        sampling: dict[str, Any] = {
            "max_new_tokens": sequence.max_tokens,
            "min_new_tokens": sequence.min_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": sequence.top_k or -1,
            "min_p": params.min_p,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
            "repetition_penalty": 1.0,
            "ignore_eos": params.ignore_eos,
            "stop_token_ids": sequence.stop_token_ids,
            "no_stop_trim": True,
            "skip_special_tokens": False,
            **_grammar(params.structured_outputs),
        }
        if params.seed is not None:
            sampling["sampling_seed"] = params.seed % 2**_SEED_BITS
        if params.logit_bias:
            sampling["logit_bias"] = params.logit_bias
        body: dict[str, Any] = {"input_ids": sequence.prompt, "sampling_params": sampling, "stream": True}
        if params.logprobs is not None:
            body |= {"return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": params.logprobs}
        return body

    def longest_event(self, sequence: RemoteSequence) -> int:
        """An event may have the whole answer so far."""
        return MAX_EVENT + _TOKEN_BYTES * sequence.max_tokens * ((sequence.params.logprobs or 0) + 3)

    def reader(self, sequence: RemoteSequence) -> EventReader:
        """The number of tokens so far tells which ones of an event are new."""
        params, count, first = sequence.params, 0, True

        def take(data: bytes) -> TokenOutput | None:
            nonlocal count, first
            if data == b"[DONE]":
                return None
            answer = _decoder.decode(data)
            if answer.error is not None:
                raise answer.error.as_error()
            if answer.meta_info is None:
                raise ValueError("an event without meta_info")
            meta = answer.meta_info
            new = meta.completion_tokens - count
            if not 0 <= new <= len(answer.output_ids):
                raise ValueError(f"completion_tokens is {meta.completion_tokens} after {count} tokens")
            count = meta.completion_tokens
            cached = meta.cached_tokens if first and meta.cached_tokens is not None else None
            first = first and not new
            return TokenOutput(
                request_id=sequence.request.request_id,
                token_ids=_last(answer.output_ids, new),
                logprobs=None if params.logprobs is None else _logprobs(_last(meta.output_token_logprobs, new)),
                top_logprobs=_best(_last(meta.output_top_logprobs, new), params.logprobs) if params.logprobs else None,
                finish_reason=_finish_reason(meta.finish_reason, params),
                num_cached_tokens=None if cached is None or not new else sequence.cached(cached),
            )

        return take


_decoder = msgspec.json.Decoder(_Answer)


def _last(items: list[Any] | None, count: int) -> list[Any]:
    return (items or [])[-count:] if count else []


def _logprobs(sent: list[_Logprob]) -> list[float]:
    return [_finite(logprob) for logprob, _, _ in sent]


def _best(sent: list[list[_Logprob] | None], count: int) -> list[list[tuple[int, float]]]:
    return [[(token_id, _finite(logprob)) for logprob, token_id, _ in (top or [])[:count]] for top in sent]


def _finite(logprob: float | None) -> float:
    if logprob is None:
        raise ValueError("a token without a log probability")
    return logprob


def _finish_reason(end: _End | None, params: SamplingParams) -> FinishReason | None:
    if end is None:
        return None
    if end.type == "length":
        return FinishReason.LENGTH
    if end.type == "stop":
        is_stop = isinstance(end.matched, int) and end.matched in params.stop_token_ids
        return FinishReason.STOP_SEQUENCE if is_stop else FinishReason.EOS_TOKEN
    raise rejection(end.status_code, one_line(end.message or end.type))


def _grammar(wanted: StructuredOutputs | None) -> dict[str, Any]:
    """Return the parameter for a grammar. Raises `InvalidRequest`."""
    if wanted is None:
        return {}
    if wanted.regex is not None:
        return {"regex": wanted.regex}
    if wanted.choice is not None:
        return {"ebnf": "root ::= " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in wanted.choice)}
    if wanted.grammar is not None:
        return {"ebnf": wanted.grammar}
    return {"json_schema": explicit_json(wanted) or '{"type": "object"}'}
