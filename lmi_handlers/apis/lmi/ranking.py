"""LMI's dialect for scores, with `option.task=text-ranking`: a query and texts, a pair of texts, or a list of pairs.

Source: DJL's CrossEncoderServingTranslator (0.36), which LMI serves cross-encoders with. `inputs` around any of these
is accepted too, because the rest of LMI's bodies have it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.decoding import decode_typed, unknown_names
from lmi_handlers.apis.lmi.pooling import LmiPoolingDialect
from lmi_handlers.apis.pooling_prompts import check_cross_encoder, query_pairs
from lmi_handlers.config.budget import Budget
from lmi_handlers.core.errors import InvalidBody, InvalidRequest
from lmi_handlers.core.pooling_params import PoolingParams
from lmi_handlers.core.request import Prompt, TextPair
from lmi_handlers.serving.parsed import ModelFacts, Parsed


class LmiPair(msgspec.Struct, frozen=True, kw_only=True):
    """Two texts, as `text` and `text_pair` or as `key` and `value`."""

    text: str | None = None
    text_pair: str | None = None
    key: str | None = None
    value: str | None = None


class LmiTexts(LmiPair, frozen=True, kw_only=True):
    """A query with each of several texts, or a pair of texts."""

    query: str | None = None
    texts: list[str] | None = None


class LmiRankingRequest(LmiTexts, frozen=True, kw_only=True):
    """`inputs` takes precedence over the other fields."""

    inputs: LmiTexts | list[LmiPair] | None = None


LmiRanking = LmiRankingRequest | list[LmiPair]


class LmiRankingDialect(LmiPoolingDialect):
    """Scores are between 0 and 1."""

    def __init__(self, facts: Callable[[], ModelFacts], *, budget: Budget) -> None:
        super().__init__(facts, PoolingParams(task="classify", activation="sigmoid"), budget=budget)

    def parse(self, payload: Payload) -> Parsed:
        if payload.content_type == "text/plain":
            raise InvalidRequest("the body must be JSON with two texts, got plain text")
        body: LmiRanking = decode_typed(payload.data, LmiRanking)  # type: ignore[arg-type]  # a union of types
        ignored: tuple[str, ...] = ()
        found: LmiTexts | list[LmiPair]
        if isinstance(body, LmiRankingRequest):
            ignored = unknown_names(payload.fields, LmiRankingRequest, nulls=False)
            found = body if body.inputs is None else body.inputs
        else:
            found = body
        single = isinstance(found, LmiPair) and found.query is None
        return self._parsed(payload, self._prompts(found, payload.adapter), ignored, single=single)

    def _prompts(self, found: LmiTexts | Sequence[LmiPair], adapter: str | None) -> tuple[Prompt, ...]:
        if isinstance(found, LmiTexts):
            if found.query is not None:
                check_cross_encoder(self._facts().capabilities)
                return query_pairs(found.query, found.texts or (), adapter, budget=self._budget, field="texts")
            return (Prompt(_text_pair(found, "the body"), adapter),)
        if not found:
            raise InvalidRequest("the body must not be an empty list")
        self._budget.check_sequences("inputs", len(found), 1)
        return tuple(Prompt(_text_pair(pair, f"pair {place}"), adapter) for place, pair in enumerate(found))


def _text_pair(pair: LmiPair, where: str) -> TextPair:
    if pair.text is not None and pair.text_pair is not None:
        return TextPair(pair.text, pair.text_pair)
    if pair.key is not None and pair.value is not None:
        return TextPair(pair.key, pair.value)
    raise InvalidBody(f"{where} must have query and texts, text and text_pair, or key and value")
