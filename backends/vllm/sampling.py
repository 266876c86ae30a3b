"""Our `SamplingParams` -> vLLM's, and vLLM's `RequestOutput` -> our `TokenOutput`."""

from __future__ import annotations

from collections.abc import Mapping

from vllm import SamplingParams as EngineSamplingParams
from vllm.logprobs import Logprob
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from backends.finite_params import finite_params
from backends.json_schema import explicit_json
from backends.vllm.typical import TYPICAL_P
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams, StructuredOutputs

_SAME_NAME = (
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "ignore_eos",
    "logprobs",
    "prompt_logprobs",
    "logit_bias",
    "thinking_token_budget",
)
_FINISH_REASONS = {"length": FinishReason.LENGTH, "abort": FinishReason.ABORT}
_SEED_BITS = 63


def engine_sampling_params(
    params: SamplingParams, eos_token_ids: tuple[int, ...], grammar: str | None = None
) -> EngineSamplingParams:
    """Return a new object, because the engine modifies it. Raises vLLM's errors if it rejects a value.

    The engine reads end-of-sequence ids from the model itself. Ours are added as stop ids, so that both agree.
    `grammar` is `params.structured_outputs` translated for llguidance, None if it was not translated.
    """
    params = finite_params(params)
    values = {name: getattr(params, name) for name in _SAME_NAME}
    if params.seed is not None:
        values["seed"] = params.seed % 2**_SEED_BITS  # torch's generators take no more
    return EngineSamplingParams(
        **values,
        stop_token_ids=[*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)],
        bad_words=list(params.bad_words) or None,
        allowed_token_ids=None if params.allowed_token_ids is None else list(params.allowed_token_ids),
        structured_outputs=_structured_outputs(params.structured_outputs, grammar),
        extra_args={TYPICAL_P: params.typical_p} if params.typical_p != 1.0 else None,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        skip_clone=True,
    )


def _structured_outputs(wanted: StructuredOutputs | None, grammar: str | None) -> StructuredOutputsParams | None:
    if wanted is None:
        return None
    if grammar is not None:
        return StructuredOutputsParams(grammar=grammar)
    return StructuredOutputsParams(
        json=explicit_json(wanted),
        json_object=wanted.json_object or None,
        regex=wanted.regex,
        choice=None if wanted.choice is None else list(wanted.choice),
        grammar=wanted.grammar,
    )


def token_output(output: RequestOutput, request: TokenRequest, *, first: bool) -> TokenOutput:
    """Convert vLLM's output for one sequence, which contains only the new tokens. `first` says whether it is the first."""
    params, prompt = request.sampling_params, output.prompt_token_ids or []
    prompt_len = len(prompt) - len(request.generated)
    cached = output.num_cached_tokens if first else None
    completion = output.outputs[0]
    token_ids = list(completion.token_ids)
    logprobs, top_logprobs = None, None
    if params.logprobs is not None and completion.logprobs is not None:
        positions = list(zip(token_ids, completion.logprobs, strict=True))
        logprobs = [position[token_id].logprob for token_id, position in positions]
        if params.logprobs:
            top_logprobs = [_best(position, params.logprobs) for _, position in positions]
    prompt_logprobs, prompt_top_logprobs = None, None
    if output.prompt_logprobs:  # only in the first output
        prompt_logprobs = [
            None if position is None else position[token_id].logprob
            for token_id, position in zip(prompt, output.prompt_logprobs, strict=True)
        ]
        if params.prompt_logprobs:
            prompt_top_logprobs = [
                None if position is None else _best(position, params.prompt_logprobs)
                for position in output.prompt_logprobs
            ]
    finish_reason = error = None
    if completion.finish_reason is not None:
        finish_reason = _finish_reason(completion.finish_reason, completion.stop_reason, params)
        if finish_reason is FinishReason.ERROR:
            error = f"vLLM ended the request: {completion.finish_reason}"
    return TokenOutput(
        request_id=output.request_id,
        token_ids=token_ids,
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        prompt_logprobs=prompt_logprobs,
        prompt_top_logprobs=prompt_top_logprobs,
        finish_reason=finish_reason,
        error=error,
        num_prompt_tokens=None if request.prompt.media_prompt is None else prompt_len,
        num_cached_tokens=None if cached is None else min(cached, prompt_len),
    )


def _best(position: Mapping[int, Logprob], count: int) -> list[tuple[int, float]]:
    """Return the `count` most likely tokens of a position, best first.

    vLLM also includes the sampled token or the prompt's token, whatever its rank.
    """
    best = sorted(position.items(), key=lambda item: item[1].rank or 0)
    return [(token_id, logprob.logprob) for token_id, logprob in best[:count]]


def _finish_reason(reason: str, stop_reason: int | str | None, params: SamplingParams) -> FinishReason:
    if reason != "stop":
        return _FINISH_REASONS.get(reason, FinishReason.ERROR)
    # `stop_reason` is the id that matched, or None for the model's own end-of-sequence id.
    return FinishReason.STOP_SEQUENCE if stop_reason in params.stop_token_ids else FinishReason.EOS_TOKEN
