"""Converts lmi_dist's outputs for a sequence into immutable deltas."""

from __future__ import annotations

from collections.abc import Mapping

from backends.lmi_dist.interface import CompletionOutput, Logprob, RequestOutput
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import TokenRequest

_FINISH_REASONS = {"length": FinishReason.LENGTH, "abort": FinishReason.ABORT}


class DeltaReader:
    """Tracks which tokens of a request have been returned. With `deltas`, outputs contain only new tokens, else all."""

    def __init__(self, request: TokenRequest, *, deltas: bool) -> None:
        self._request = request
        self._deltas = deltas
        self._owes_prompt_logprobs = request.sampling_params.prompt_logprobs is not None
        self._taken = 0

    def take(self, output: RequestOutput) -> TokenOutput | None:
        """Return what is new in `output`, or None if nothing is."""
        params = self._request.sampling_params
        completion = output.outputs[0]
        start = 0 if self._deltas else self._taken
        token_ids = list(completion.token_ids[start:])
        finish_reason = self._finish_reason(completion)
        if not token_ids and finish_reason is None:
            return None
        logprobs = top_logprobs = prompt_logprobs = prompt_top_logprobs = None
        if params.logprobs is not None:
            positions = list(zip(token_ids, (completion.logprobs or ())[start:], strict=True))
            logprobs = [position[token_id].logprob for token_id, position in positions]
            if params.logprobs:
                top_logprobs = [_best(position, params.logprobs) for _, position in positions]
        if self._owes_prompt_logprobs:
            of_prompt = output.prompt_logprobs or ()
            prompt_logprobs = [
                None if position is None else position[token_id].logprob
                for token_id, position in zip(self._request.prompt.token_ids, of_prompt, strict=True)
            ]
            if params.prompt_logprobs:
                prompt_top_logprobs = [
                    None if position is None else _best(position, params.prompt_logprobs) for position in of_prompt
                ]
            self._owes_prompt_logprobs = False
        self._taken += len(token_ids)
        error = (
            f"lmi_dist ended the request: {completion.finish_reason}" if finish_reason is FinishReason.ERROR else None
        )
        return TokenOutput(
            request_id=self._request.request_id,
            token_ids=token_ids,
            logprobs=logprobs,
            top_logprobs=top_logprobs,
            prompt_logprobs=prompt_logprobs,
            prompt_top_logprobs=prompt_top_logprobs,
            finish_reason=finish_reason,
            error=error,
        )

    def _finish_reason(self, completion: CompletionOutput) -> FinishReason | None:
        if completion.finish_reason is None:
            return None
        if completion.finish_reason != "stop":
            return _FINISH_REASONS.get(completion.finish_reason, FinishReason.ERROR)
        wanted = completion.stop_reason in self._request.sampling_params.stop_token_ids
        return FinishReason.STOP_SEQUENCE if wanted else FinishReason.EOS_TOKEN


def _best(position: Mapping[int, Logprob], count: int) -> list[tuple[int, float]]:
    """Return the `count` most likely tokens of a position, best first.

    The engine also includes the sampled token or the prompt's token, whatever its rank.
    """
    best = sorted(((token_id, entry.logprob) for token_id, entry in position.items()), key=lambda entry: -entry[1])
    return best[:count]
