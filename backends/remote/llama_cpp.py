"""`/completion` of llama.cpp's server, with prompts as token ids."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from backends.json_schema import explicit_json
from backends.remote.client import Client, one_line
from backends.remote.options import KEY_VARIABLE
from backends.remote.protocol import ASKING, Description, EventReader, RemoteProtocol, RemoteSequence, check_key, read
from lmi_handlers.core.errors import RequestFailed, UnsupportedFeature
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.sampling_params import StructuredOutputs

_NO_SEED = 2**32 - 1
"""llama.cpp's word for a random seed."""

_SAMPLERS = ("penalties", "temperature", "top_k", "top_p", "min_p", "typ_p")
"""In the order of all other engines. llama.cpp's own puts the temperature last."""

_FINISH_REASONS = {"limit": FinishReason.LENGTH, "eos": FinishReason.EOS_TOKEN}
_LOGPROB_BYTES = 512
_FEW = 8 << 20


class _TopLogprob(msgspec.Struct):
    id: int
    logprob: float


class _Position(msgspec.Struct):
    id: int
    logprob: float
    top_logprobs: list[_TopLogprob] = []


class _Timings(msgspec.Struct):
    cache_n: int = 0


class _Answer(msgspec.Struct):
    tokens: list[int]
    stop_type: str
    completion_probabilities: list[_Position] = []
    timings: _Timings = msgspec.field(default_factory=_Timings)


class _Settings(msgspec.Struct):
    n_ctx: int


class _Props(msgspec.Struct):
    default_generation_settings: _Settings
    total_slots: int
    model_path: str


class LlamaCppProtocol(RemoteProtocol):
    """llama.cpp's server of 2026.

    Its streams leave out tokens: of those that make up one character, only the last is sent. A whole answer has all of
    them, so answers are not streamed. There is no parameter for stop ids: what follows one is cut off.
    """

    title = "llama.cpp"
    path = "/completion"
    unsupported = (
        "min_tokens",
        "presence_penalty",  # would count the prompt's tokens, too
        "frequency_penalty",
        "prompt_logprobs",
        "bad_words",
        "allowed_token_ids",
    )
    max_logprobs = 20
    max_prompt_logprobs = 0

    async def describe(self, client: Client) -> Description | None:
        """`/props` has the context of a slot."""
        answer = await client.ask("/props", seconds=ASKING)
        check_key(answer, KEY_VARIABLE)
        props = read(answer, _Props)
        if props is None:
            return None
        return Description(one_line(props.model_path), props.default_generation_settings.n_ctx)

    def text_body(self, text: str) -> dict[str, Any]:
        return {"content": text, "add_special": False}

    def body(self, sequence: RemoteSequence) -> dict[str, Any]:
        """Every parameter is written, because the remote has defaults of its own."""
        params = sequence.params
        body: dict[str, Any] = {
            "prompt": sequence.prompt,
            "n_predict": sequence.max_tokens,
            "stream": False,
            "return_tokens": True,
            "samplers": _SAMPLERS,
            "temperature": params.temperature,
            "top_k": sequence.top_k,
            "top_p": params.top_p,
            "min_p": params.min_p,
            "typical_p": params.typical_p,
            "repeat_penalty": params.repetition_penalty,
            "repeat_last_n": len(sequence.prompt) + sequence.max_tokens,
            "ignore_eos": params.ignore_eos,
            "seed": _NO_SEED if params.seed is None else params.seed % _NO_SEED,
            **_grammar(params.structured_outputs),
        }
        if params.logprobs is not None:
            body["n_probs"] = max(params.logprobs, 1)
        if params.logit_bias:
            body["logit_bias"] = list(params.logit_bias.items())
        return body

    def longest_answer(self, sequence: RemoteSequence) -> int | None:
        """The answer has the prompt, the grammar and all biases again."""
        answer = sequence.max_tokens * ((sequence.params.logprobs or 0) + 2)
        return _FEW + _LOGPROB_BYTES * (len(sequence.prompt) + answer)

    def reader(self, sequence: RemoteSequence) -> EventReader:
        """There is one answer, and no event."""
        params = sequence.params

        def take(data: bytes) -> TokenOutput:
            answer = _decoder.decode(data)
            if answer.stop_type not in _FINISH_REASONS:
                raise RequestFailed(f"the remote engine ended the request: {one_line(answer.stop_type)}")
            tokens, finish_reason = answer.tokens, _FINISH_REASONS[answer.stop_type]
            end = next((index for index, token in enumerate(tokens) if token in sequence.stop_token_ids), None)
            if end is not None:
                is_stop = tokens[end] in params.stop_token_ids
                finish_reason = FinishReason.STOP_SEQUENCE if is_stop else FinishReason.EOS_TOKEN
                tokens = tokens[: end + 1]
            positions = answer.completion_probabilities[: len(tokens)]
            return TokenOutput(
                request_id=sequence.request.request_id,
                token_ids=tokens,
                logprobs=None if params.logprobs is None else [position.logprob for position in positions],
                top_logprobs=[_best(position, params.logprobs) for position in positions] if params.logprobs else None,
                finish_reason=finish_reason,
                num_cached_tokens=sequence.cached(answer.timings.cache_n),
            )

        return take


_decoder = msgspec.json.Decoder(_Answer)


def _best(position: _Position, count: int) -> list[tuple[int, float]]:
    return [(item.id, item.logprob) for item in position.top_logprobs[:count]]


def _grammar(wanted: StructuredOutputs | None) -> dict[str, Any]:
    """Return the parameters for a grammar. Raises `InvalidRequest`."""
    if wanted is None:
        return {}
    if wanted.regex is not None:
        raise UnsupportedFeature("llama.cpp has no regular expressions", field="structured_outputs")
    if wanted.choice is not None:
        choices = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in wanted.choice)
        return {"grammar": f"root ::= {choices}"}
    if wanted.grammar is not None:
        return {"grammar": wanted.grammar}
    schema = explicit_json(wanted)
    return {"json_schema": {"type": "object"} if schema is None else msgspec.Raw(schema.encode())}
