"""Chooses the next token of many sequences at once, in a few passes over `[rows, vocabulary]`.

Two slow torch functions are avoided. Instead of `multinomial`, which draws one exponential per token of the vocabulary,
the cumulative distribution is inverted. Instead of a full sort, `topk` is used with a growing k until it holds the
nucleus.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from transformers import WatermarkLogitsProcessor

from backends.grammar import GrammarMatcher
from backends.sampling.nucleus import nucleus_threshold, outside_typical_p
from lmi_handlers.core.sampling_params import SamplingParams

# A lower temperature only overflows. The distribution has only its most likely token left.
MIN_TEMPERATURE = 1e-5

_BELOW_ONE = 1.0 - 2.0**-24  # the largest float32 below 1
_NUCLEUS_SIZES = (64, 1024)

Value = TypeVar("Value", int, float)


class SamplerState:
    """The sampler's state for one sequence: parameters, random numbers and earlier tokens.

    `stop_ids` end the sequence and are suppressed until `min_tokens` is reached. `bad_words` are sequences of ids that
    must not be generated. `watermark` is set if the parameters ask for one. `grammar` is set once it is compiled. Each
    sequence has its own random generator and draws one number per token, so its tokens do not depend on the rest of the
    batch.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: list[int],
        stop_ids: frozenset[int],
        vocab_size: int,
        device: torch.device,
        *,
        bad_words: list[list[int]] | None = None,
        watermark: WatermarkLogitsProcessor | None = None,
    ) -> None:
        self.params = params
        self.greedy = params.temperature < MIN_TEMPERATURE
        self.grammar: GrammarMatcher | None = None
        self._last_token = prompt_token_ids[-1]
        self._generated: list[int] = []
        self._bad_words = bad_words or []
        self._watermark = watermark
        self._random = random.Random(params.seed)  # noqa: S311 (nothing secret; None means the system's entropy)
        self._seen: torch.Tensor | None = None
        if params.repetition_penalty != 1.0:
            self._seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
            self._seen[torch.tensor(prompt_token_ids, device=device)] = True
        self._counts: torch.Tensor | None = None
        if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
            self._counts = torch.zeros(vocab_size, device=device)
        self._bias: tuple[torch.Tensor, torch.Tensor] | None = None
        if params.logit_bias:
            ids = torch.tensor(list(params.logit_bias), device=device)
            self._bias = ids, torch.tensor(list(params.logit_bias.values()), dtype=torch.float32, device=device)
        self._forbidden: torch.Tensor | None = None
        if params.allowed_token_ids is not None:
            self._forbidden = torch.ones(vocab_size, dtype=torch.bool, device=device)
            self._forbidden[torch.tensor(params.allowed_token_ids, device=device)] = False
        self._held_back: torch.Tensor | None = None
        if params.min_tokens > 0 and (known := [token for token in stop_ids if token < vocab_size]):
            self._held_back = torch.tensor(known, device=device)

    @property
    def edits_logits(self) -> bool:
        """True if `edit_logits` may change anything."""
        edits = (self._watermark, self._seen, self._counts, self._bias, self._forbidden, self._held_back, self.grammar)
        return bool(self._bad_words) or any(edit is not None for edit in edits)

    def edit_logits(self, logits: torch.Tensor) -> None:
        """Apply everything that comes before the temperature to one row of logits, `[vocabulary]`, in place."""
        params = self.params
        if self._watermark is not None:
            last = torch.tensor([[self._last_token]], device=logits.device)
            logits.copy_(self._watermark(last, logits[None])[0])
        if self._forbidden is not None:
            logits.masked_fill_(self._forbidden, -math.inf)
        if self._bias is not None:
            logits.index_add_(0, *self._bias)
        if self._seen is not None:
            penalty = params.repetition_penalty
            penalised = torch.where(logits < 0, logits * penalty, logits / penalty)
            logits.copy_(torch.where(self._seen, penalised, logits))
        if self._counts is not None:
            logits.sub_(self._counts, alpha=params.frequency_penalty)
            logits.sub_((self._counts > 0).to(logits.dtype), alpha=params.presence_penalty)
        if banned := self._ends_of_bad_words():
            logits[banned] = -math.inf
        if self.grammar is not None:
            allowed = torch.from_numpy(self.grammar.allowed()).to(logits.device)
            logits.masked_fill_(~allowed, -math.inf)
        if self._held_back is not None and len(self._generated) < params.min_tokens:
            held_back = logits.index_fill(0, self._held_back, -math.inf)
            if self.grammar is None or bool(held_back.max() > -math.inf):  # otherwise the grammar allows only the end
                logits.copy_(held_back)

    def error(self, best: float) -> str | None:
        """Return why a row has no next token, or None if it has one. `best` is its greatest logit after the edits."""
        if self.grammar is not None and (error := self.grammar.error) is not None:
            return f"structured_outputs: the grammar cannot go on: {error}"
        if best == -math.inf and self.edits_logits:
            return "no token is left that the request's parameters allow"
        return None if math.isfinite(best) else "the model gave logits that are not finite numbers"

    def _ends_of_bad_words(self) -> list[int]:
        """Return the last id of each bad word whose other ids have just been generated."""
        generated = self._generated
        return [word[-1] for word in self._bad_words if generated[len(generated) - len(word) + 1 :] == word[:-1]]

    def draw(self) -> float:
        """Return the next random number of this sequence, at least 0 and below 1."""
        return min(self._random.random(), _BELOW_ONE)

    def append(self, token_id: int) -> None:
        """Record a generated token."""
        self._last_token = token_id
        self._generated.append(token_id)
        if self._seen is not None:
            self._seen[token_id] = True
        if self._counts is not None:
            self._counts[token_id] += 1
        if self.grammar is not None:
            self.grammar.advance(token_id)


class Sampled(NamedTuple):
    """The next token of one sequence, or an `error`. `logprob` and `top` are set if the parameters ask for them."""

    token_id: int
    logprob: float | None = None
    top: list[tuple[int, float]] | None = None
    error: str | None = None


@torch.inference_mode()
def sample(logits: torch.Tensor, states: list[SamplerState]) -> list[Sampled]:
    """Choose a token for each row of `logits`, `[rows, vocabulary]` of any float type, which may be overwritten.

    The order is watermark, allowed tokens, bias, penalties, `bad_words`, grammar, `min_tokens`, temperature, `top_k`,
    `top_p`, `min_p`, `typical_p`. Logprobs are those of the model's own distribution, before any of these. A row without
    a usable logit fails alone.
    """
    logits = logits.float()
    wanted = [row for row, state in enumerate(states) if state.params.logprobs is not None]
    raw = logits[wanted] if wanted else None
    for row, state in enumerate(states):
        if state.edits_logits:
            state.edit_logits(logits[row])
    best, tokens = logits.max(dim=-1)
    stochastic = [row for row, state in enumerate(states) if not state.greedy]
    if len(stochastic) == len(states):
        tokens = _draw(logits, states)
    elif stochastic:
        tokens[stochastic] = _draw(logits[stochastic], [states[row] for row in stochastic])
    sampled = [
        Sampled(token_id) if (error := state.error(value)) is None else Sampled(-1, error=error)
        for token_id, value, state in zip(tokens.tolist(), best.tolist(), states, strict=True)
    ]
    if raw is not None:
        counts = [states[row].params.logprobs or 0 for row in wanted]
        for row, logprob, top in zip(wanted, *logprobs_and_best(raw, tokens[wanted], counts), strict=True):
            if sampled[row].error is None:
                sampled[row] = Sampled(sampled[row].token_id, logprob, top)
    return sampled


def logprobs_and_best(
    raw: torch.Tensor, tokens: torch.Tensor, counts: list[int]
) -> tuple[list[float], list[list[tuple[int, float]] | None]]:
    """Return the logprob of `tokens[i]` in row i, and the `counts[i]` most likely tokens of that row.

    `raw` contains float32 logits. The most likely tokens are pairs (id, logprob), best first, or None if the count is 0.
    """
    total = raw.logsumexp(dim=-1, keepdim=True)
    logprobs = (raw.gather(1, tokens[:, None]) - total).squeeze(1).tolist()
    if not any(counts):
        return logprobs, [None] * len(counts)
    values, ids = raw.topk(min(max(counts), raw.shape[-1]), dim=-1)
    pairs = zip(ids.tolist(), (values - total).tolist(), strict=True)
    tops = [list(zip(*pair, strict=True))[:count] if count else None for pair, count in zip(pairs, counts, strict=True)]
    return logprobs, tops


# Random choice


def _draw(logits: torch.Tensor, states: list[SamplerState]) -> torch.Tensor:
    """Draw a token id for each row, `[rows]`."""
    params = [state.params for state in states]
    scores = logits
    if any(p.temperature != 1.0 for p in params):
        scores = scores / _column([p.temperature for p in params], scores)
    vocab_size = scores.shape[-1]
    scores = _filter(scores, [p.top_k if 0 < p.top_k < vocab_size else None for p in params], _outside_top_k)
    scores = _filter(scores, [p.top_p if p.top_p < 1.0 else None for p in params], _outside_top_p)
    scores = _filter(scores, [p.min_p if p.min_p > 0.0 else None for p in params], _outside_min_p)
    scores = _filter(scores, [p.typical_p if p.typical_p < 1.0 else None for p in params], _outside_typical_p)
    cumulative = scores.softmax(dim=-1).cumsum(dim=-1)
    drawn = _column([state.draw() for state in states], scores) * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, drawn, right=True).squeeze(1)
    return tokens.clamp_(max=vocab_size - 1)  # only rows of NaN get past the last token


def _filter(
    scores: torch.Tensor,
    values: list[Value | None],
    outside: Callable[[torch.Tensor, list[Value]], torch.Tensor],
) -> torch.Tensor:
    """Set scores that `outside` marks to minus infinity. Rows without a value are skipped and cost nothing."""
    rows = [row for row, value in enumerate(values) if value is not None]
    if not rows:
        return scores
    chosen = [value for value in values if value is not None]
    if len(rows) == len(values):
        return scores.masked_fill(outside(scores, chosen), -math.inf)
    scores = scores.clone()
    some = scores[rows]
    scores[rows] = some.masked_fill_(outside(some, chosen), -math.inf)
    return scores


def _outside_top_k(scores: torch.Tensor, top_k: list[int]) -> torch.Tensor:
    """Mark scores below the k-th best. Ties with it are kept."""
    best = scores.topk(max(top_k), dim=-1).values
    kth = torch.tensor(top_k, device=scores.device)[:, None] - 1
    return scores < best.gather(1, kth)


def _outside_top_p(scores: torch.Tensor, top_p: list[float]) -> torch.Tensor:
    """Mark all but the smallest set of most likely tokens with probability `top_p`."""
    return scores < nucleus_threshold(scores, scores.softmax(dim=-1), _column(top_p, scores), _NUCLEUS_SIZES)


def _outside_min_p(scores: torch.Tensor, min_p: list[float]) -> torch.Tensor:
    """Mark tokens with less than `min_p` times the probability of the best token."""
    return scores < scores.amax(dim=-1, keepdim=True) + _column([math.log(p) for p in min_p], scores)


def _outside_typical_p(scores: torch.Tensor, typical_p: list[float]) -> torch.Tensor:
    return outside_typical_p(scores, _column(typical_p, scores), _NUCLEUS_SIZES)


def _column(values: list[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
