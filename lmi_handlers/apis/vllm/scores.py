"""vLLM's scores: `/v1/rerank` and `/v2/rerank`, which are also Jina's and Cohere's, and `/score`.

Sources: vLLM 0.32; Jina and Cohere for `return_documents` and documents that are objects. null means absent.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec

from formatters.vllm.scores import RerankFormatter, ScoreFormatter
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.openai.dialect import NOBODYS_MODEL, OpenAIDialect, check_length, decode_body
from lmi_handlers.apis.text_pairs import check_cross_encoder, query_pairs
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.pooling_params import PoolingParams
from lmi_handlers.core.request import GenerationRequest, Prompt, TextPair
from lmi_handlers.serving.parsed import FormatterFactory, Parsed

Texts = str | list[str]


class TextDocument(msgspec.Struct, frozen=True):
    """A document as an object."""

    text: str


class _Fields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of both bodies. `user` is accepted and ignored.

    `truncate_prompt_tokens` keeps that many tokens of each pair; -1 keeps as much as the model takes. Without
    `use_activation`, scores are the model's own logits.
    """

    model: str | None = None
    user: str | None = None
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    use_activation: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None


class RerankDocumentsBody(_Fields, frozen=True, kw_only=True):
    """The body of `/v1/rerank` and `/v2/rerank`. `top_n` 0 means all documents."""

    query: str
    documents: str | list[str | TextDocument]
    top_n: Annotated[int, msgspec.Meta(ge=0)] | None = None
    return_documents: bool | None = None


class ScoreBody(_Fields, frozen=True, kw_only=True):
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


class _ScoresDialect(OpenAIDialect):
    def _parsed(
        self,
        payload: Payload,
        body: _Fields,
        ignored: tuple[str, ...],
        prompts: tuple[Prompt, ...],
        formatter: FormatterFactory,
        field: str,
    ) -> Parsed:
        self._budget.check_fields(body)
        facts, truncate = self._facts(), body.truncate_prompt_tokens
        check_cross_encoder(facts.capabilities)
        request = GenerationRequest(
            request_id=payload.request_id,
            prompts=prompts,
            pooling_params=PoolingParams(
                task="classify", activation="none" if body.use_activation is False else "model"
            ),
            priority=body.priority or 0,
            cache_salt=body.cache_salt,
            truncate=facts.capabilities.max_input_tokens if truncate == -1 else truncate,
            truncation_side="right",
            ignored_parameters=ignored,
        )
        return Parsed(request, formatter, str, partial(check_length, field), field)

    def _answer_model(self, body: _Fields) -> str:
        return self._facts().model_id if body.model in NOBODYS_MODEL else str(body.model)


class RerankDocumentsDialect(_ScoresDialect):
    """Dialect of `/v1/rerank` and `/v2/rerank`, and of bodies with `documents` on the invoke routes."""

    def parse(self, payload: Payload) -> Parsed:
        body, ignored = decode_body(payload, RerankDocumentsBody)
        given = [body.documents] if isinstance(body.documents, str) else body.documents
        documents = [item if isinstance(item, str) else item.text for item in given]
        prompts = query_pairs(body.query, documents, payload.adapter, budget=self._budget, field="documents")
        formatter = partial(
            RerankFormatter,
            model=self._answer_model(body),
            documents=None if body.return_documents is False else documents,
            top_n=body.top_n or None,
        )
        return self._parsed(payload, body, ignored, prompts, formatter, "documents")


class ScoreDialect(_ScoresDialect):
    """Dialect of `/score`, and of bodies with `text_1` on the invoke routes."""

    def parse(self, payload: Payload) -> Parsed:
        body, ignored = decode_body(payload, ScoreBody)
        (name, first), (other, second) = _two_fields(body)
        if not first:
            raise InvalidRequest("must not be empty", field=name)
        if len(first) == 1:
            prompts = query_pairs(first[0], second, payload.adapter, budget=self._budget, field=other)
        elif len(first) == len(second):
            self._budget.check_sequences(other, len(second), 1)
            prompts = tuple(Prompt(TextPair(*pair), payload.adapter) for pair in zip(first, second, strict=True))
        else:
            raise InvalidRequest(f"must have one text, or as many as {other} ({len(second)})", field=name)
        formatter = partial(ScoreFormatter, model=self._answer_model(body))
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
