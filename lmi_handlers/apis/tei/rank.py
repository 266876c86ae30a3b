"""TEI's scores: `/rerank` and `/predict`.

Source: the OpenAPI document of text-embeddings-inference 1.7. null means absent.
"""

from __future__ import annotations

from functools import partial

from formatters.tei.rank import PredictFormatter, RerankFormatter
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.decoding import decode_typed, unknown_names
from lmi_handlers.apis.pooling_prompts import check_cross_encoder, query_pairs
from lmi_handlers.apis.tei.dialect import TeiDialect, TruncationFields
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.pooling_params import Activation, PoolingParams
from lmi_handlers.core.request import Prompt, TextPair
from lmi_handlers.serving.parsed import Parsed


class ScoreFields(TruncationFields, frozen=True, kw_only=True):
    """Fields of both bodies. Without `raw_scores`, scores are between 0 and 1."""

    raw_scores: bool | None = None


class RerankBody(ScoreFields, frozen=True, kw_only=True):
    """The body of `/rerank`. With `return_text`, the answer repeats the texts."""

    query: str
    texts: list[str]
    return_text: bool | None = None


class PredictBody(ScoreFields, frozen=True, kw_only=True):
    """The body of `/predict`: a text, a list with a pair of texts, or a list of lists with one or two texts."""

    inputs: str | list[str | list[str]]


class RerankDialect(TeiDialect):
    """Dialect of `/rerank`."""

    def parse(self, payload: Payload) -> Parsed:
        ignored = unknown_names(payload.fields, RerankBody, nulls=False)
        body = decode_typed(payload.data, RerankBody)
        prompts = query_pairs(body.query, body.texts, payload.adapter, budget=self._budget, field="texts")
        check_cross_encoder(self._facts().capabilities)
        params = PoolingParams(task="classify", activation="none" if body.raw_scores else "sigmoid")
        formatter = partial(RerankFormatter, texts=body.texts if body.return_text else None)
        return self._parsed(payload, body, ignored, prompts, params, formatter, "texts")


class PredictDialect(TeiDialect):
    """Dialect of `/predict`."""

    def parse(self, payload: Payload) -> Parsed:
        ignored = unknown_names(payload.fields, PredictBody, nulls=False)
        body = decode_typed(payload.data, PredictBody)
        single, inputs = _split(body.inputs)
        self._budget.check_sequences("inputs", len(inputs), 1)
        prompts = tuple(
            Prompt(_content(texts, "inputs" if single else f"inputs[{place}]"), payload.adapter)
            for place, texts in enumerate(inputs)
        )
        labels = self._facts().capabilities.labels
        activation: Activation = "none" if body.raw_scores else "softmax" if len(labels) > 1 else "sigmoid"
        params = PoolingParams(task="classify", activation=activation)
        formatter = partial(PredictFormatter, labels=labels, single=single)
        return self._parsed(payload, body, ignored, prompts, params, formatter)


def _split(inputs: str | list[str | list[str]]) -> tuple[bool, list[list[str]]]:
    """Return whether this is a single input, and the texts of each input. Raises `InvalidRequest`."""
    if isinstance(inputs, str):
        return True, [[inputs]]
    if not inputs:
        raise InvalidRequest("must not be empty", field="inputs")
    texts = [text for text in inputs if isinstance(text, str)]
    batch = [item for item in inputs if not isinstance(item, str)]
    if texts and batch:
        raise InvalidRequest("must be texts or lists of texts, not both", field="inputs")
    return (True, [texts]) if texts else (False, batch)


def _content(texts: list[str], field: str) -> str | TextPair:
    match texts:
        case [text]:
            return text
        case [first, second]:
            return TextPair(first, second)
    raise InvalidRequest(f"must have one or two texts, got {len(texts)}", field=field)
