"""Converts the engine's growing result for a sequence into immutable deltas."""

from __future__ import annotations

import torch
from tensorrt_llm.llmapi import CompletionOutput, RequestOutput

from lmi_handlers.core.errors import RequestFailed
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import TokenRequest

_ROWS = 256  # of logits to convert at a time, each as wide as the vocabulary


class DeltaReader:
    """Tracks which tokens of a result have been returned.

    The engine returns the same object for a request every time and appends to its lists. What it reports as new is not
    reliable, so the tokens are counted here.
    """

    def __init__(self, request: TokenRequest, eos_token_ids: tuple[int, ...]) -> None:
        params = request.sampling_params
        self.request_id = request.request_id
        self.num_prompt_tokens = len(request.prompt.token_ids)
        self.finished = False
        self._prompt_token_ids = request.prompt.token_ids
        self._eos_token_ids = frozenset() if params.ignore_eos else frozenset(eos_token_ids)
        self._wants_logprobs = params.logprobs is not None
        self._prompt_logprobs = params.prompt_logprobs  # as requested; None once they have been returned
        self._taken = 0

    def take(self, result: RequestOutput) -> TokenOutput | None:
        """Return what is new in `result`, or None. Raises `RequestFailed` if requested logprobs are missing."""
        completion: CompletionOutput = result.outputs[0]
        finish_reason, error = self._ending(completion)
        if finish_reason is FinishReason.ERROR:
            return self.fail(error)
        if self._prompt_logprobs is not None and result.context_logits is None and finish_reason is None:
            return None  # they belong to the first output
        token_ids: list[int] = completion.token_ids[self._taken :]  # a slice is a copy
        if not token_ids and finish_reason is None:
            return None
        logprobs = self._logprobs(completion, token_ids) if self._wants_logprobs else None
        prompt_logprobs, prompt_top_logprobs = None, None
        if self._prompt_logprobs is not None:
            prompt_logprobs, prompt_top_logprobs = _prompt_logprobs(
                result.context_logits, self._prompt_token_ids, self._prompt_logprobs
            )
            self._prompt_logprobs = None
        num_cached_tokens = None if self._taken else result.cached_tokens
        self._taken += len(token_ids)
        self.finished = finish_reason is not None
        return TokenOutput(
            request_id=self.request_id,
            token_ids=token_ids,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            prompt_top_logprobs=prompt_top_logprobs,
            finish_reason=finish_reason,
            num_cached_tokens=num_cached_tokens,
        )

    def fail(self, error: str) -> TokenOutput:
        """End the sequence and return its error output."""
        self.finished = True
        return TokenOutput(
            request_id=self.request_id, token_ids=[], finish_reason=FinishReason.ERROR, error=error or "no cause given"
        )

    def _ending(self, completion: CompletionOutput) -> tuple[FinishReason | None, str]:
        match completion.finish_reason:
            case None:
                return None, ""
            case "length":
                return FinishReason.LENGTH, ""
            case "stop":
                # `stop_reason` is None for the engine's own end id. The model's other end ids are stop ids to it.
                at_eos = completion.stop_reason is None or completion.stop_reason in self._eos_token_ids
                return FinishReason.EOS_TOKEN if at_eos else FinishReason.STOP_SEQUENCE, ""
            case "cancelled":
                return FinishReason.ABORT, ""
            case other:
                return FinishReason.ERROR, f"TensorRT-LLM ended the request: {other}"

    def _logprobs(self, completion: CompletionOutput, token_ids: list[int]) -> list[float]:
        entries = completion.logprobs[self._taken : self._taken + len(token_ids)]
        if len(entries) < len(token_ids) or any(
            token_id not in entry for token_id, entry in zip(token_ids, entries, strict=True)
        ):
            raise RequestFailed("TensorRT-LLM returned no log probability for a sampled token")
        return [float(entry[token_id].logprob) for token_id, entry in zip(token_ids, entries, strict=True)]


def _prompt_logprobs(
    context_logits: torch.Tensor | None, prompt_token_ids: list[int], count: int
) -> tuple[list[float | None], list[list[tuple[int, float]] | None] | None]:
    """Return the logprob of each prompt token, and the `count` most likely tokens of its position unless that is 0.

    The logits are `[prompt, vocabulary]`. Row t predicts token t + 1.
    """
    rows = 0 if context_logits is None else context_logits.shape[0]
    if context_logits is None or rows != len(prompt_token_ids):
        raise RequestFailed(f"TensorRT-LLM returned logits for {rows} of the {len(prompt_token_ids)} prompt tokens")
    logprobs: list[float | None] = [None]
    best: list[list[tuple[int, float]] | None] = [None]
    for start in range(0, rows - 1, _ROWS):
        following = torch.tensor(prompt_token_ids[start + 1 : start + 1 + _ROWS], device=context_logits.device)
        logits = context_logits[start : start + len(following)].float()
        total = logits.logsumexp(dim=-1, keepdim=True)
        logprobs += (logits.gather(1, following[:, None]) - total).squeeze(1).tolist()
        if count:
            values, ids = logits.topk(min(count, logits.shape[-1]), dim=-1)
            pairs = zip(ids.tolist(), (values - total).tolist(), strict=True)
            best += [list(zip(*pair, strict=True)) for pair in pairs]
    return logprobs, best if count else None
