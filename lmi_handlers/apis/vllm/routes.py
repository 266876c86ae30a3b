"""vLLM's routes for scores, vectors and tokens.

The clients of Jina and Cohere send the same bodies to `/v1/rerank` and `/v2/rerank`.
"""

from __future__ import annotations

from collections.abc import Sequence

from formatters.openai.errors import status_error
from formatters.vllm import schemas
from formatters.vllm.examples import ANSWERS
from lmi_handlers.apis.api import Api, Context
from lmi_handlers.apis.documentation import QUESTION, REQUEST_BOUNDS, Documentation
from lmi_handlers.apis.routes import JSON, READING, TEXT_EMBEDDING, TEXT_RANKING, Document, Route, generation
from lmi_handlers.apis.vllm.detokenize import DetokenizeBody, detokenize, read_tokens
from lmi_handlers.apis.vllm.pooling import ClassifyBody, ClassifyDialect, PoolDialect, PoolingBody
from lmi_handlers.apis.vllm.scores import RerankDocumentsBody, RerankDocumentsDialect, ScoreBody, ScoreDialect

TAG = "vLLM"


class VllmApi(Api):
    """Scores, vectors, and the text of tokens.

    With `option.task=text-ranking`, bodies of scores are known on the invoke routes too.
    """

    prefixes = ("/score", "/v2/rerank", "/classify", "/pooling", "/detokenize")
    documentation = Documentation(
        examples={
            **ANSWERS,
            RerankDocumentsBody: {"query": QUESTION, "documents": ["Deep Learning is a kind of machine learning."]},
            ClassifyBody: {"input": QUESTION},
            PoolingBody: {"input": QUESTION},
            DetokenizeBody: {"tokens": [87, 104, 97, 116]},
            ScoreBody: {"text_1": QUESTION, "text_2": "Deep Learning is a kind of machine learning."},
        },
        bounds={
            "RerankDocumentsBody": {"documents": {"minItems": 1}, **REQUEST_BOUNDS},
            "ScoreBody": REQUEST_BOUNDS,
            "ClassifyBody": REQUEST_BOUNDS,
            "PoolingBody": REQUEST_BOUNDS,
        },
    )

    def __init__(self, context: Context) -> None:
        rerank = RerankDocumentsDialect(context.facts, budget=context.budget)
        score = ScoreDialect(context.facts, budget=context.budget)
        self._rerank = generation(rerank, RerankDocumentsBody, {JSON: (schemas.RerankResponse,)}, TEXT_RANKING)
        self._score = generation(score, ScoreBody, {JSON: (schemas.ScoreResponse,)}, TEXT_RANKING)
        ranks, budget = context.properties.ranks, context.budget
        classify = ClassifyDialect(context.facts, budget=budget)
        pool = PoolDialect(context.facts, budget=budget, normalize=context.properties.normalize, ranks=ranks)
        self._classify = generation(classify, ClassifyBody, {JSON: (schemas.ClassifyResponse,)}, TEXT_RANKING)
        self._pool = generation(
            pool, PoolingBody, {JSON: (schemas.PoolingResponse,)}, TEXT_RANKING if ranks else TEXT_EMBEDDING
        )
        self._detokenize = Document(
            find=detokenize,
            read=read_tokens,
            bodies={JSON: (DetokenizeBody,)},
            answers={JSON: (schemas.DetokenizeResponse,)},
            dialects=(score,),
            errors=READING,
        )
        if context.properties.ranks:
            # `queries` comes first, because such a body may have `documents` too.
            scores = dict.fromkeys(("queries", "text_1", "data_1"), self._score)
            self.claims = {**scores, "documents": self._rerank}

    def routes(self) -> Sequence[Route]:
        rerank, score = "Sort documents by how well they match a query.", "Score pairs of texts."
        return (
            Route("POST", "/v1/rerank", "rerank_documents", TAG, rerank, self._rerank),
            Route("POST", "/v2/rerank", "rerank_documents_v2", TAG, rerank, self._rerank),
            Route("POST", "/score", "score", TAG, score, self._score),
            Route("POST", "/v1/score", "score_v1", TAG, score, self._score),
            Route("POST", "/classify", "classify", TAG, "Classify texts.", self._classify),
            Route("POST", "/pooling", "pooling", TAG, "Turn texts into vectors or scores.", self._pool),
            Route("POST", "/detokenize", "detokenize", TAG, "Turn token ids into a text.", self._detokenize),
        )

    def router_error(self, status: int, kind: str, message: str) -> object:  # noqa: ARG002  not in this API
        return status_error(status, message)
