"""vLLM's `/inference/v1/generate`, which `vllm serve` has with `--enable-scale-out` or `--tokens-only`."""

from __future__ import annotations

from typing import Any

import msgspec

from backends.json_schema import explicit_json
from backends.remote.client import Client, one_line
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
from lmi_handlers.core.errors import ConfigError, RequestFailed
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs

_SAME_NAME = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "ignore_eos",
    "prompt_logprobs",
)
_FINISH_REASONS = {"length": FinishReason.LENGTH, "abort": FinishReason.ABORT}
_SEED_BITS = 63
_LOGPROB_BYTES = 128
_FEW = 1 << 20


class _Logprob(msgspec.Struct, kw_only=True):
    logprob: float
    rank: int | None = None


class _TopLogprob(_Logprob, kw_only=True):
    token_id: int


class _Position(_TopLogprob, kw_only=True):
    top_logprobs: list[_TopLogprob] = []


class _Logprobs(msgspec.Struct):
    content: list[_Position] | None = None


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: _Logprobs | None = None


class _Answer(msgspec.Struct):
    """An event, or the whole answer, which also has `prompt_logprobs`."""

    choices: list[_Choice] = []
    error: Error | None = None
    prompt_logprobs: list[dict[int, _Logprob] | None] | None = None


class _Version(msgspec.Struct):
    version: str


class VLLMProtocol(RemoteProtocol):
    """vLLM 0.32. Log probabilities of a prompt only come with a whole answer, so these answers are not streamed."""

    title = "vLLM"
    path = "/inference/v1/generate"
    # vLLM's own limit is 20. Of the sampled token and the best ones, it leaves out what exceeds the number asked for, so
    # one more is asked for.
    max_logprobs = 19
    max_prompt_logprobs = 20
    unsupported = ("typical_p",)
    takes_cache_salt = True

    async def describe(self, client: Client) -> Description | None:
        """`/version` tells vLLM from others, `/v1/models` has the model."""
        if read(await client.ask("/version", seconds=ASKING), _Version) is None:
            return None
        answer = await client.ask("/v1/models", seconds=ASKING)
        check_key(answer, KEY_VARIABLE)
        models = read(answer, RemoteModels)
        if models is None or not models.data:
            return None
        if (await client.ask(self.path, {}, seconds=ASKING)).status == 404:
            raise ConfigError(f"the remote vLLM has no {self.path}: start it with --enable-scale-out")
        return Description(one_line(models.data[0].id), models.data[0].max_model_len)

    def body(self, sequence: RemoteSequence) -> dict[str, Any]:
        """Every parameter is written, because the remote has defaults of its own."""
        params, salt = sequence.params, sequence.request.prompt.cache_salt
        values = {name: getattr(params, name) for name in _SAME_NAME}
        values |= {
            "max_tokens": sequence.max_tokens,
            "min_tokens": sequence.min_tokens,
            "top_k": sequence.top_k,
            "seed": None if params.seed is None else params.seed % 2**_SEED_BITS,
            "logprobs": params.logprobs + 1 if params.logprobs else params.logprobs,
            "logit_bias": params.logit_bias,
            "bad_words": params.bad_words or None,
            "allowed_token_ids": params.allowed_token_ids,
            "structured_outputs": _structured_outputs(params.structured_outputs),
            "stop_token_ids": sequence.stop_token_ids,
            "detokenize": False,
        }
        return {
            "token_ids": sequence.prompt,
            "sampling_params": {name: value for name, value in values.items() if value is not None},
            "stream": self.longest_answer(sequence) is None,
            **({} if salt is None else {"cache_salt": salt}),
            # With a reasoning parser, vLLM would only apply the grammar after a thought.
            **({} if params.structured_outputs is None else {"reasoning_ended": True}),
        }

    def longest_answer(self, sequence: RemoteSequence) -> int | None:
        """Only answers with log probabilities of the prompt are not streamed."""
        params = sequence.params
        if params.prompt_logprobs is None:
            return None
        prompt = len(sequence.prompt) * (params.prompt_logprobs + 2)
        answer = sequence.max_tokens * ((params.logprobs or 0) + 2)
        return _FEW + _LOGPROB_BYTES * (prompt + answer)

    def reader(self, sequence: RemoteSequence) -> EventReader:
        """An event may have an error in place of tokens."""
        params = sequence.params

        def take(data: bytes) -> TokenOutput | None:
            if data == b"[DONE]":
                return None
            answer = _decoder.decode(data)
            if answer.error is not None:
                raise answer.error.as_error()
            if not answer.choices:
                return None
            choice = answer.choices[0]
            of_prompt, best_of_prompt = _prompt_logprobs(
                answer.prompt_logprobs, sequence.prompt, params.prompt_logprobs
            )
            positions = (choice.logprobs.content if choice.logprobs else None) or []
            return TokenOutput(
                request_id=sequence.request.request_id,
                token_ids=choice.token_ids or [],
                logprobs=None if params.logprobs is None else [position.logprob for position in positions],
                top_logprobs=[_best(position, params.logprobs) for position in positions] if params.logprobs else None,
                prompt_logprobs=of_prompt,
                prompt_top_logprobs=best_of_prompt,
                finish_reason=_finish_reason(choice, params),
            )

        return take


_decoder = msgspec.json.Decoder(_Answer)


def _best(position: _Position, count: int) -> list[tuple[int, float]]:
    """Return the `count` most likely tokens of a position, best first. The sampled token is among those sent."""
    best = sorted(position.top_logprobs, key=lambda item: -item.logprob)
    return [(item.token_id, item.logprob) for item in best[:count]]


def _prompt_logprobs(
    sent: list[dict[int, _Logprob] | None] | None, prompt: list[int], count: int | None
) -> tuple[list[float | None] | None, list[list[tuple[int, float]] | None] | None]:
    if sent is None or count is None:
        return None, None
    if len(sent) != len(prompt) or not all(
        top is None or token in top for token, top in zip(prompt, sent, strict=True)
    ):
        raise ValueError("log probabilities of another prompt")
    logprobs = [None if top is None else top[token].logprob for token, top in zip(prompt, sent, strict=True)]
    if not count:
        return logprobs, None
    return logprobs, [None if top is None else _most_likely(top, count) for top in sent]


def _most_likely(top: dict[int, _Logprob], count: int) -> list[tuple[int, float]]:
    best = sorted(top.items(), key=lambda item: item[1].rank or 0)
    return [(token_id, item.logprob) for token_id, item in best[:count]]


def _finish_reason(choice: _Choice, params: SamplingParams) -> FinishReason | None:
    if choice.finish_reason is None:
        return None
    if choice.finish_reason not in ("stop", *_FINISH_REASONS):
        raise RequestFailed(f"the remote engine ended the request: {one_line(choice.finish_reason)}")
    if choice.finish_reason != "stop":
        return _FINISH_REASONS[choice.finish_reason]
    # `stop_reason` is the id that matched, or None for the model's own end-of-sequence id.
    return FinishReason.STOP_SEQUENCE if choice.stop_reason in params.stop_token_ids else FinishReason.EOS_TOKEN


def _structured_outputs(wanted: StructuredOutputs | None) -> dict[str, Any] | None:
    if wanted is None:
        return None
    formats = {
        "json": explicit_json(wanted),
        "json_object": wanted.json_object or None,
        "regex": wanted.regex,
        "choice": wanted.choice,
        "grammar": wanted.grammar,
    }
    return {name: value for name, value in formats.items() if value is not None}
