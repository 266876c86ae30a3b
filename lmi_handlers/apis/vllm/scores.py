"""vLLM's scores: `/v1/rerank` and `/v2/rerank`, which are also Jina's and Cohere's, and `/score`.

Sources: vLLM 0.32; Jina and Cohere for `return_documents` and documents that are objects. null means absent.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec

from formatters.vllm.scores import RerankFormatter, ScoreFormatter
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.pooling_prompts import check_cross_encoder, query_pairs
from lmi_handlers.apis.vllm.pooling import PoolingDialect, PoolingFields, classified
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.request import Prompt, TextPair
from lmi_handlers.serving.parsed import FormatterFactory, Parsed

Texts = str | list[str]


class TextDocument(msgspec.Struct, frozen=True):
    """A document as an object."""

    text: str


class RerankDocumentsBody(PoolingFields, frozen=True, kw_only=True):
    """The body of `/v1/rerank` and `/v2/rerank`. `top_n` 0 means all documents."""

    query: str
    documents: str | list[str | TextDocument]
    top_n: Annotated[int, msgspec.Meta(ge=0)] | None = None
    return_documents: bool | None = None


class ScoreBody(PoolingFields, frozen=True, kw_only=True):
    """The body of `/score`: each text with the one at the same place, or one text with each of several.

    They are called `text_1` and `text_2`, `queries` and `documents`, `queries` and `items`, or `data_1` and `data_2`.
    """

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None


class _ScoresDialect(PoolingDialect):
    def _parsed(
        self,
        payload: Payload,
        body: PoolingFields,
        ignored: tuple[str, ...],
        prompts: tuple[Prompt, ...],
        formatter: FormatterFactory,
        field: str,
    ) -> Parsed:
        check_cross_encoder(self._facts().capabilities)
        return self._pooled(payload, body, ignored, prompts, classified(body), formatter, field)


class RerankDocumentsDialect(_ScoresDialect):
    """Dialect of `/v1/rerank` and `/v2/rerank`, and of bodies with `documents` on the invoke routes."""

    def parse(self, payload: Payload) -> Parsed:
        body, ignored = self._decoded(payload, RerankDocumentsBody)
        given = [body.documents] if isinstance(body.documents, str) else body.documents
        documents = [item if isinstance(item, str) else item.text for item in given]
        adapter = self._adapter(body.model, payload)
        prompts = query_pairs(body.query, documents, adapter, budget=self._budget, field="documents")
        formatter = partial(
            RerankFormatter,
            model=self._model_name(body.model),
            documents=None if body.return_documents is False else documents,
            top_n=body.top_n or None,
        )
        return self._parsed(payload, body, ignored, prompts, formatter, "documents")


class ScoreDialect(_ScoresDialect):
    """Dialect of `/score`, and of bodies with `text_1` on the invoke routes."""

    def parse(self, payload: Payload) -> Parsed:
        body, ignored = self._decoded(payload, ScoreBody)
        (name, first), (other, second) = _two_fields(body)
        if not first:
            raise InvalidRequest("must not be empty", field=name)
        adapter = self._adapter(body.model, payload)
        if len(first) == 1:
            prompts = query_pairs(first[0], second, adapter, budget=self._budget, field=other)
        elif len(first) == len(second):
            self._budget.check_sequences(other, len(second), 1)
            prompts = tuple(Prompt(TextPair(*pair), adapter) for pair in zip(first, second, strict=True))
        else:
            raise InvalidRequest(f"must have one text, or as many as {other} ({len(second)})", field=name)
        formatter = partial(ScoreFormatter, model=self._model_name(body.model))
        return self._parsed(payload, body, ignored, prompts, formatter, other)


def _two_fields(body: ScoreBody) -> tuple[tuple[str, list[str]], tuple[str, list[str]]]:
    """Return the names and the texts of the two fields of one of `_NAMES`. Raises `InvalidRequest`."""
    for names in _NAMES:
        given = [getattr(body, name) for name in names]
        if None not in given:
            first, second = ([texts] if isinstance(texts, str) else texts for texts in given)
            return (names[0], first), (names[1], second)
    raise InvalidRequest(f"the body must have {', or '.join(' and '.join(names) for names in _NAMES)}")


_NAMES = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))
