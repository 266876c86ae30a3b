"""The beam search algorithm for one prompt. It works on token ids and logprobs only, without engine or text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from lmi_handlers.core.outputs import FinishReason
from lmi_handlers.core.request import BeamSearchParams

Continuations = Sequence[tuple[int, float]]
"""Token ids that may come next, with their logprobs, best first."""


class Beam(msgspec.Struct, frozen=True):
    """A possible answer or the start of one: its tokens, their logprobs and the alternatives to each."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[Continuations, ...] = ()
    cumulative_logprob: float = 0.0
    finish_reason: FinishReason | None = None

    def score(self, length_penalty: float) -> float:
        """The length-normalised score that ranks beams of different lengths."""
        return self.cumulative_logprob / math.pow(len(self.token_ids), length_penalty)


class BeamSearch:
    """One prompt's beams. While any are `running`, get the possible next tokens of each and call `advance`.

    Follows the rules of transformers' `generate(num_beams=.., do_sample=False)`. `running` holds the open beams, most
    probable first and all of the same length. `finished` holds the `num_beams` best ended beams, best score first.
    `endings` maps token ids that end a beam to the reason; before `min_tokens` they are skipped.
    `contains_stop` tells whether the text of some token ids contains a stop string.
    """

    def __init__(
        self,
        params: BeamSearchParams,
        *,
        max_tokens: int,
        min_tokens: int = 0,
        endings: Mapping[int, FinishReason] | None = None,
        contains_stop: Callable[[Sequence[int]], bool] | None = None,
    ) -> None:
        self.running: list[Beam] = [Beam()]
        self.finished: list[Beam] = []
        self._params = params
        self._max_tokens = max_tokens
        self._min_tokens = min_tokens
        self._endings = endings or {}
        self._contains_stop = contains_stop

    def advance(self, continuations: Sequence[Continuations]) -> None:
        """Extend each beam of `running` by its continuations, given in the same order, and keep the best.

        At most `num_beams` plus the number of `endings` continuations per beam can matter.
        """
        num_beams = self._params.num_beams
        last_step = len(self.running[0].token_ids) + 1 == self._max_tokens
        running: list[Beam] = []
        ended: list[Beam] = []
        for rank, (beam, alternatives, token_id, logprob) in enumerate(self._candidates(continuations)):
            if rank >= num_beams and (last_step or len(running) == num_beams):
                break
            candidate = self._extend(beam, alternatives, token_id, logprob)
            if candidate.finish_reason is None:
                if len(running) < num_beams:
                    running.append(candidate)
            elif rank < num_beams:  # lower ranks only fill up `running`
                ended.append(candidate)
        self._add_finished(ended)
        self.running = [] if self._is_done(running) else running

    def cut(self) -> None:
        """End the search here: the open beams are as long as they are."""
        self._add_finished([msgspec.structs.replace(beam, finish_reason=FinishReason.LENGTH) for beam in self.running])
        self.running = []

    def _candidates(self, continuations: Sequence[Continuations]) -> list[tuple[Beam, Continuations, int, float]]:
        """All extensions by one token, most probable first."""
        candidates = [
            (beam, alternatives, token_id, logprob)
            for beam, alternatives in zip(self.running, continuations, strict=True)
            for token_id, logprob in alternatives
            if len(beam.token_ids) >= self._min_tokens or token_id not in self._endings
        ]
        candidates.sort(key=lambda candidate: candidate[0].cumulative_logprob + candidate[3], reverse=True)
        return candidates

    def _extend(self, beam: Beam, alternatives: Continuations, token_id: int, logprob: float) -> Beam:
        token_ids = (*beam.token_ids, token_id)
        reason = self._endings.get(token_id)
        if reason is None and self._contains_stop is not None and self._contains_stop(token_ids):
            reason = FinishReason.STOP_SEQUENCE
        if reason is None and len(token_ids) == self._max_tokens:
            reason = FinishReason.LENGTH
        return Beam(
            token_ids,
            (*beam.logprobs, logprob),
            (*beam.top_logprobs, alternatives),
            beam.cumulative_logprob + logprob,
            reason,
        )

    def _add_finished(self, beams: list[Beam]) -> None:
        self.finished += beams
        self.finished.sort(key=lambda beam: beam.score(self._params.length_penalty), reverse=True)
        del self.finished[self._params.num_beams :]

    def _is_done(self, running: list[Beam]) -> bool:
        """True once enough beams have ended and no open one, scored at its current length, beats the worst of them."""
        if not running:
            return True
        if len(self.finished) < self._params.num_beams:
            return False
        penalty = self._params.length_penalty
        return self._params.early_stopping or running[0].score(penalty) <= self.finished[-1].score(penalty)
