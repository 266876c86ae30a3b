"""Chooses the next token of many sequences at once, in a few passes over `[rows, vocabulary]`.

Logits are NumPy arrays or torch tensors on any device. Full sorts are avoided: `topk` is used with a growing k until it
holds the nucleus. Draws invert the cumulative distribution, first over blocks of the vocabulary and then within one
block, because a cumulative sum of everything takes as long as the rest of the draw.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate, islice
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from array_api_compat import array_namespace, device

from backends.finite_params import finite_params
from backends.grammar import GrammarMatcher
from backends.sampling.arrays import Array, column, logsumexp, softmax, topk
from backends.sampling.made_once import MadeOnce
from backends.sampling.nucleus import nucleus_threshold, outside_typical_p
from backends.sampling.thinking import ThinkingCap
from lmi_handlers.core.errors import InvalidRequest, RequestError, RequestFailed
from lmi_handlers.core.sampling_params import SamplingParams

_BELOW_ONE = 1.0 - 2.0**-24  # the largest float32 below 1
_NUCLEUS_SIZES = (64, 1024)
_BLOCK_SIZE = 256
_SPARSE = 64
"""Tokens of the vocabulary for each of those with a bias that are few."""

Value = TypeVar("Value", int, float)


class Watermark(Protocol):
    """Marks a text by preferring some tokens, like transformers' `WatermarkLogitsProcessor`."""

    def __call__(self, input_ids: Array, scores: Array, /) -> Array:
        """Return changed scores, `[1, vocabulary]`. `input_ids` contains the preceding token, `[1, 1]`."""


class _Fixed(NamedTuple):
    """A request's lists for each token of the vocabulary, on the device of the logits. None changes nothing.

    `bias` has the ids of tokens and what is added to their logits, or the latter for the whole vocabulary.
    """

    bias: tuple[Array | None, Array] | None
    forbidden: Array | None
    held_back: Array | None


class _Tables(NamedTuple):
    """The same, with what a sequence has counted of its tokens."""

    seen: Array | None
    counts: Array | None
    bias: tuple[Array | None, Array] | None
    forbidden: Array | None
    held_back: Array | None


_FIXED = MadeOnce()


class SamplerState:
    """The sampler's state for one sequence: parameters, random numbers and earlier tokens.

    `stop_ids` end the sequence and are suppressed until `min_tokens` is reached. `bad_words` are sequences of ids that
    must not be generated. `watermark` and `thinking` are set if the parameters ask for them. `grammar` is set once it is
    compiled. Each sequence has its own random generator and draws one number per token, so its tokens do not depend on the
    rest of the batch.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        stop_ids: frozenset[int],
        *,
        bad_words: list[list[int]] | None = None,
        watermark: Watermark | None = None,
        thinking: ThinkingCap | None = None,
    ) -> None:
        self.params = params = finite_params(params)
        self.greedy = params.greedy
        self.grammar: GrammarMatcher | None = None
        self._last_token = prompt_token_ids[-1]
        self._repeats = params.repetition_penalty != 1.0
        self._prompt = frozenset(prompt_token_ids) if self._repeats else frozenset()
        self._generated: list[int] = []
        self._counts = params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        self._held_back = stop_ids if params.min_tokens > 0 else frozenset()
        self._bad = bad_words
        self._bad_tokens = [word[0] for word in bad_words or () if len(word) == 1]
        self._bad_words = defaultdict[int, list[list[int]]](list)
        """By their last token but one: most of them need not be compared with what was generated."""
        for word in bad_words or ():
            if len(word) > 1:
                self._bad_words[word[-2]].append(word)
        self._watermark = watermark
        self._thinking = thinking
        self._random = random.Random(params.seed)  # noqa: S311 (nothing secret; None means the system's entropy)
        self._tables: _Tables | None = None  # made for the first logits

    @property
    def _holds_back(self) -> bool:
        return bool(self._held_back) and len(self._generated) < self.params.min_tokens

    @property
    def edits_logits(self) -> bool:
        """True if `edit_logits` may change anything."""
        return bool(
            self._watermark is not None
            or self._repeats
            or self._counts
            or self.params.logit_bias
            or self._forced is not None
            or self._forbids
        )

    @property
    def _forbids(self) -> bool:
        """True if `edit_logits` may forbid tokens."""
        return bool(
            self.params.allowed_token_ids is not None
            or self._holds_back
            or self._bad_tokens
            or self._bad_words
            or self.grammar is not None
        )

    @property
    def is_plain(self) -> bool:
        """True if the next tokens are those with the greatest logits, however many of them are chosen at once."""
        return self.greedy and self._thinking is None and not self.edits_logits

    @property
    def _forced(self) -> int | None:
        return None if self._thinking is None else self._thinking.forced

    def edit_logits(self, logits: Array, allowed: Array | None = None) -> None:
        """Apply everything that comes before the temperature to one row of logits, `[vocabulary]`, in place.

        `allowed` is the grammar's mask. Scalars are assigned one by one: an index list would be copied to a GPU, and
        everybody would wait for that.
        """
        xp = array_namespace(logits)
        params = self.params
        if (forced := self._forced) is not None:  # whatever the other parameters say
            logits[...] = -math.inf
            logits[forced] = 0.0
            return
        if self._tables is None:
            self._tables = self._make_tables(logits)
        tables = self._tables
        if self._watermark is not None:
            last = xp.asarray([[self._last_token]], device=device(logits))
            logits[...] = self._watermark(last, logits[None, :])[0, :]
        if tables.forbidden is not None:
            logits[...] = xp.where(tables.forbidden, -math.inf, logits)
        if tables.bias is not None:
            ids, values = tables.bias
            if ids is None:
                logits += values
            else:
                logits[ids] += values
        if tables.seen is not None:
            penalty = params.repetition_penalty
            penalised = xp.where(logits < 0, logits * penalty, logits / penalty)
            logits[...] = xp.where(tables.seen, penalised, logits)
        if tables.counts is not None:
            logits -= tables.counts * params.frequency_penalty
            logits -= xp.astype(tables.counts > 0, logits.dtype) * params.presence_penalty
        for token in self._ends_of_bad_words():
            logits[token] = -math.inf
        if allowed is not None:
            logits[...] = xp.where(allowed, logits, -math.inf)
        if tables.held_back is not None and self._holds_back:
            held_back = xp.asarray(logits, copy=True)
            held_back[tables.held_back] = -math.inf
            # If the grammar allows only the end, nothing is held back.
            logits[...] = held_back if allowed is None else xp.where(xp.max(held_back) > -math.inf, held_back, logits)

    def _make_tables(self, logits: Array) -> _Tables:
        xp, where, vocab_size = array_namespace(logits), device(logits), logits.shape[0]
        seen = counts = None
        if self._repeats:
            seen = xp.zeros(vocab_size, dtype=xp.bool, device=where)
            seen[[*self._prompt, *self._generated]] = True
        if self._counts:
            counts = xp.zeros(vocab_size, dtype=logits.dtype, device=where)
            for token in self._generated:
                counts[token] += 1
        fixed = _FIXED.get(
            lambda: self._make_fixed(logits),
            self.params.logit_bias,
            self.params.allowed_token_ids,
            self._held_back,
            self._bad,
            kind=(vocab_size, logits.dtype, where),
        )
        return _Tables(seen, counts, *fixed)

    def _make_fixed(self, logits: Array) -> _Fixed:
        xp, where, vocab_size = array_namespace(logits), device(logits), logits.shape[0]
        bias = forbidden = held_back = None
        if self.params.logit_bias:
            ids = xp.asarray(list(self.params.logit_bias), device=where)
            values = xp.asarray(list(self.params.logit_bias.values()), dtype=logits.dtype, device=where)
            bias = ids, values
            if len(self.params.logit_bias) * _SPARSE > vocab_size:  # then an addition of all takes less than a look-up
                whole = xp.zeros(vocab_size, dtype=logits.dtype, device=where)
                whole[ids] = values
                bias = None, whole
        if self.params.allowed_token_ids is not None:
            forbidden = xp.ones(vocab_size, dtype=xp.bool, device=where)
            forbidden[list(self.params.allowed_token_ids)] = False
        if self._bad_tokens:
            forbidden = xp.zeros(vocab_size, dtype=xp.bool, device=where) if forbidden is None else forbidden
            forbidden[self._bad_tokens] = True
        if known := [token for token in self._held_back if token < vocab_size]:
            held_back = xp.asarray(known, device=where)
        return _Fixed(bias, forbidden, held_back)

    def error(self, best: float) -> RequestError | None:
        """Return why a row has no next token, or None if it has one. `best` is its greatest logit after the edits.

        A `RequestFailed` is the model's fault, everything else the request's.
        """
        if self.grammar is not None and (error := self.grammar.error) is not None:
            return InvalidRequest(f"the grammar cannot go on: {error}", field="structured_outputs")
        if best == -math.inf and self._forbids:
            return InvalidRequest("no token is left that the request's parameters allow")
        return None if math.isfinite(best) else RequestFailed("the model gave logits that are not finite numbers")

    @property
    def ended(self) -> bool:
        """True if the grammar allows nothing more."""
        return self.grammar is not None and self.grammar.ended

    def _ends_of_bad_words(self) -> list[int]:
        """Return the last id of each bad word whose other ids have just been generated."""
        generated = self._generated
        words = self._bad_words.get(generated[-1], ()) if generated else ()
        return [word[-1] for word in words if generated[len(generated) - len(word) + 1 :] == word[:-1]]

    def draw(self) -> float:
        """Return the next random number of this sequence, at least 0 and below 1."""
        return min(self._random.random(), _BELOW_ONE)

    def resume(self, token_ids: Sequence[int]) -> None:
        """Take the state after `token_ids`, which were generated before. Raises `InvalidRequest` if the grammar forbids them.

        Call it before anything is chosen, and after `grammar` is set.
        """
        if not token_ids:
            return
        grammar, self.grammar = self.grammar, None  # it takes all of them at once
        for token_id in token_ids:
            if not self.greedy:
                self.draw()
            self.record(token_id)
        self.grammar = grammar
        if grammar is not None:
            grammar.resume(token_ids)

    def record(self, token_id: int) -> None:
        """Record a generated token. `sample` and `sample_drafts` do this for the tokens that they return."""
        self._last_token = token_id
        self._generated.append(token_id)
        if self._tables is not None:
            if self._tables.seen is not None:
                self._tables.seen[token_id] = True
            if self._tables.counts is not None:
                self._tables.counts[token_id] += 1
        if self._thinking is not None:
            self._thinking.record(token_id)
        if self.grammar is not None:
            self.grammar.advance(token_id)


class Sampled(NamedTuple):
    """The next token of one sequence, or an `error`. `logprob` and `top` are set if the parameters ask for them."""

    token_id: int
    logprob: float | None = None
    top: list[tuple[int, float]] | None = None
    error: RequestError | None = None


def sample(logits: Array, states: list[SamplerState]) -> list[Sampled]:
    """Choose a token for each row of `logits`, `[rows, vocabulary]` of any float type, which may be overwritten.

    The order is watermark, allowed tokens, bias, penalties, `bad_words`, grammar, `min_tokens`, temperature, `top_k`,
    `top_p`, `min_p`, `typical_p`. None of them matters where a thought at its cap is ended. Logprobs are those of the
    model's own distribution, before any of these. A row without a usable logit fails alone. The tokens are recorded in
    `states`.
    """
    return [choice for (choice,) in sample_drafts(logits, states, [()] * len(states))]


def sample_drafts(logits: Array, states: list[SamplerState], drafts: Sequence[Sequence[int]]) -> list[list[Sampled]]:
    """Choose the next tokens of each sequence: those that its draft predicts correctly, and one more.

    Each sequence has `len(draft) + 1` rows of `logits`, `[rows, vocabulary]`, one after the other. Its row i follows the
    first i tokens of its draft, none of which may end the sequence. The result and the states are those of `sample`
    called for one row of a sequence after the other, up to the first token that differs from the draft, the first error
    or the end of the grammar.

    There are at most as many passes as the longest draft has rows, whatever the number of sequences: a GPU's results are
    waited for in each of them.
    """
    firsts = list(accumulate((len(draft) + 1 for draft in drafts), initial=0))
    chosen: list[list[Sampled]] = [[] for _ in states]
    going: Sequence[int] = range(len(states))
    while going:
        # Other rows are edited after the preceding token is recorded, or take a random number if it is right.
        counts = {i: firsts[i + 1] - firsts[i] - len(chosen[i]) if states[i].is_plain else 1 for i in going}
        rows = [firsts[i] + len(chosen[i]) + k for i, count in counts.items() for k in range(count)]
        owners = [states[i] for i, count in counts.items() for _ in range(count)]
        choices = iter(_choose(logits if len(rows) == logits.shape[0] else logits[rows], owners))
        going = [
            i for i, count in counts.items() if _accept(list(islice(choices, count)), states[i], drafts[i], chosen[i])
        ]
    return chosen


def _accept(choices: list[Sampled], state: SamplerState, draft: Sequence[int], chosen: list[Sampled]) -> bool:
    """Record the next choices, as long as the draft predicts them. Returns whether there are more to come."""
    for choice in choices:
        drafted = draft[len(chosen)] if len(chosen) < len(draft) else None
        chosen.append(choice)
        if choice.error is None:
            state.record(choice.token_id)
        if choice.token_id != drafted or state.ended:
            return False
    return True


@np.errstate(all="ignore")  # infinities are usual here, and rows of NaN are reported as errors
def _choose(logits: Array, states: list[SamplerState]) -> list[Sampled]:
    xp = array_namespace(logits)
    logits = xp.astype(logits, xp.float32, copy=False)
    wanted = [row for row, state in enumerate(states) if state.params.logprobs is not None]
    unchanged = all(state.greedy and not state.edits_logits for state in states)
    raw = logits if unchanged and len(wanted) == len(states) else logits[wanted] if wanted else None
    masks = [state.grammar.allowed() for state in states if state.grammar is not None]
    allowed = iter(xp.asarray(np.stack(masks), device=device(logits)) if masks else ())
    for row, state in enumerate(states):
        if state.edits_logits:
            state.edit_logits(logits[row], None if state.grammar is None else next(allowed))
    tokens = xp.argmax(logits, axis=-1)
    best = xp.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
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
    raw: Array, tokens: Array, counts: list[int]
) -> tuple[list[float], list[list[tuple[int, float]] | None]]:
    """Return the logprob of `tokens[i]` in row i, and the `counts[i]` most likely tokens of that row.

    `raw` contains float32 logits. The most likely tokens are pairs (id, logprob), best first, or None if the count is 0.
    """
    xp = array_namespace(raw)
    total = logsumexp(raw)
    logprobs = (xp.take_along_axis(raw, tokens[:, None], axis=-1) - total)[:, 0].tolist()
    if not any(counts):
        return logprobs, [None] * len(counts)
    values, ids = topk(raw, min(max(counts), raw.shape[-1]))
    pairs = zip(ids.tolist(), (values - total).tolist(), strict=True)
    tops = [list(zip(*pair, strict=True))[:count] if count else None for pair, count in zip(pairs, counts, strict=True)]
    return logprobs, tops


# Random choice


def _draw(scores: Array, states: list[SamplerState]) -> Array:
    """Draw a token id for each row, `[rows]`. Overwrites `scores`."""
    params = [state.params for state in states]
    if any(p.temperature != 1.0 for p in params):
        scores /= column([p.temperature for p in params], scores)
    vocab_size = scores.shape[-1]
    scores = _filter(scores, [p.top_k if 0 < p.top_k < vocab_size else None for p in params], _outside_top_k)
    scores = _filter(scores, [p.top_p if p.top_p < 1.0 else None for p in params], _outside_top_p)
    scores = _filter(scores, [p.min_p if p.min_p > 0.0 else None for p in params], _outside_min_p)
    scores = _filter(scores, [p.typical_p if p.typical_p < 1.0 else None for p in params], _outside_typical_p)
    return _invert(softmax(scores), column([state.draw() for state in states], scores))


def _invert(probs: Array, drawn: Array) -> Array:
    """Return the token at the fraction `drawn`, `[rows, 1]`, of each row's cumulative probability, `[rows]`."""
    xp = array_namespace(probs)
    rows, vocab_size = probs.shape
    whole = vocab_size // _BLOCK_SIZE
    end = whole * _BLOCK_SIZE
    blocks = xp.sum(xp.reshape(probs[:, :end], (rows, whole, _BLOCK_SIZE)), axis=-1)
    if end < vocab_size:
        blocks = xp.concat([blocks, xp.sum(probs[:, end:], axis=-1, keepdims=True)], axis=-1)
    block, rest = _find(blocks, drawn * xp.sum(blocks, axis=-1, keepdims=True))
    ids = block * _BLOCK_SIZE + xp.arange(_BLOCK_SIZE, device=device(probs))[None, :]
    inside = xp.take_along_axis(probs, xp.clip(ids, max=vocab_size - 1), axis=-1)
    place, _ = _find(xp.where(ids < vocab_size, inside, 0.0), rest)
    return (block * _BLOCK_SIZE + place)[:, 0]


def _find(weights: Array, position: Array) -> tuple[Array, Array]:
    """Return where `position` lies in the cumulative weights, and how far behind its start, `[rows, 1]` each.

    The weight found is never 0, unless all of them are.
    """
    xp = array_namespace(weights)
    cumulative = xp.cumulative_sum(weights, axis=-1, include_initial=True)
    position = xp.minimum(position, cumulative[:, -1:] * _BELOW_ONE)  # a block's sums differ by rounding
    index = xp.count_nonzero(cumulative[:, 1:] <= position, axis=-1, keepdims=True)
    return index, position - xp.take_along_axis(cumulative, index, axis=-1)


def _filter(scores: Array, values: list[Value | None], outside: Callable[[Array, list[Value]], Array]) -> Array:
    """Set scores that `outside` marks to minus infinity. Rows without a value are skipped and cost nothing."""
    rows = [row for row, value in enumerate(values) if value is not None]
    if not rows:
        return scores
    xp = array_namespace(scores)
    chosen = [value for value in values if value is not None]
    if len(rows) == len(values):
        return xp.where(outside(scores, chosen), -math.inf, scores)
    some = scores[rows]
    scores[rows] = xp.where(outside(some, chosen), -math.inf, some)
    return scores


def _outside_top_k(scores: Array, top_k: list[int]) -> Array:
    """Mark scores below the k-th best. Ties with it are kept."""
    xp = array_namespace(scores)
    best, _ = topk(scores, max(top_k))
    kth = xp.asarray(top_k, device=device(scores))[:, None] - 1
    return scores < xp.take_along_axis(best, kth, axis=-1)


def _outside_top_p(scores: Array, top_p: list[float]) -> Array:
    """Mark all but the smallest set of most likely tokens with probability `top_p`."""
    return scores < nucleus_threshold(scores, softmax(scores), column(top_p, scores), _NUCLEUS_SIZES)


def _outside_min_p(scores: Array, min_p: list[float]) -> Array:
    """Mark tokens with less than `min_p` times the probability of the best token."""
    best = array_namespace(scores).max(scores, axis=-1, keepdims=True)
    return scores < best + column([math.log(p) for p in min_p], scores)


def _outside_typical_p(scores: Array, typical_p: list[float]) -> Array:
    return outside_typical_p(scores, column(typical_p, scores), _NUCLEUS_SIZES)
