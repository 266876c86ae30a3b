"""TEI's routes, and its `/`, `/tokenize`, `/decode` and `/info` if the server embeds or scores texts.

Source: the OpenAPI document of text-embeddings-inference 1.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from formatters.base import encode
from formatters.tei.examples import ANSWERS
from formatters.tei.schemas import (
    EmbeddingErrorResponse,
    EmbeddingInfo,
    LabelIds,
    ModelType,
    PoolingName,
    Prediction,
    Rank,
    SparseValue,
)
from formatters.vllm.schemas import RerankResponse
from lmi_handlers import __version__
from lmi_handlers.apis.api import Api, Context
from lmi_handlers.apis.base import Reply
from lmi_handlers.apis.documentation import QUESTION, Bounds, Documentation
from lmi_handlers.apis.routes import JSON, READING, TEXT_EMBEDDING, TEXT_RANKING, Document, Probe, Route, generation
from lmi_handlers.apis.tei.embed import (
    EmbedAllBody,
    EmbedBody,
    EmbedDialect,
    SimilarityBody,
    SimilarityDialect,
    TokenEmbedDialect,
)
from lmi_handlers.apis.tei.rank import PredictBody, PredictDialect, RerankBody, RerankDialect
from lmi_handlers.apis.tei.tokenize import (
    DecodeBody,
    TokenizeTextsBody,
    decode_ids,
    read_ids,
    read_texts,
    tokenize_texts,
)
from lmi_handlers.apis.vllm.scores import RerankDocumentsBody, RerankDocumentsDialect
from lmi_handlers.core.errors import EngineNotReady
from lmi_handlers.serving.served_model import ServedModel
from lmi_handlers.text.spans import MarkedSpan

TAG = "Text Embeddings Inference"

_ANSWER = "Deep Learning is a kind of machine learning."


_MODEL_PATHS = ("/tokenize", "/decode", "/info")
_MODEL_BODIES = {"TokenizeTextsRequest": TokenizeTextsBody, "DecodeRequest": DecodeBody}
_MODEL_BOUNDS: dict[str, Bounds] = {
    "TokenizeTextsRequest": {"inputs": {"minItems": 1}},
    "DecodeRequest": {"ids": {"minItems": 1}},
}


class TeiApi(Api):
    """The part of text-embeddings-inference's API that embeds and scores texts."""

    prefixes: tuple[str, ...] = ("/embed", "/embed_all", "/embed_sparse", "/similarity", "/rerank", "/predict")
    documentation = Documentation(
        names={
            "EmbedRequest": EmbedBody,
            "EmbedAllRequest": EmbedAllBody,
            "SimilarityRequest": SimilarityBody,
            "RerankRequest": RerankBody,
            "PredictRequest": PredictBody,
        },
        examples={
            **ANSWERS,
            EmbedBody: {"inputs": QUESTION},
            EmbedAllBody: {"inputs": QUESTION},
            SimilarityBody: {"inputs": {"source_sentence": QUESTION, "sentences": [_ANSWER]}},
            RerankBody: {"query": QUESTION, "texts": [_ANSWER]},
            PredictBody: {"inputs": QUESTION},
            TokenizeTextsBody: {"inputs": QUESTION},
            DecodeBody: {"ids": [101, 7592, 102]},
        },
        bounds={
            "EmbedRequest": {},
            "RerankRequest": {"texts": {"minItems": 1}},
            "SimilarityInputs": {"sentences": {"minItems": 1}},
            "PredictRequest": {"inputs": {"minItems": 1}},
        },
    )

    def __init__(self, context: Context) -> None:
        properties, facts, budget = context.properties, context.facts, context.budget
        embed = EmbedDialect(facts, budget=budget, normalize=properties.normalize)
        embed_all = TokenEmbedDialect(facts, budget=budget, task="embed_all")
        embed_sparse = TokenEmbedDialect(facts, budget=budget, task="embed_sparse")
        similarity = SimilarityDialect(facts, budget=budget)
        rerank, predict = RerankDialect(facts, budget=budget), PredictDialect(facts, budget=budget)
        self._properties, self._workers, self._dialects = properties, context.workers, (embed,)
        self._read_texts = partial(read_texts, budget=budget)
        self._read_ids = partial(read_ids, budget=budget)
        self._embed = generation(embed, EmbedBody, {JSON: (list[list[float]],)}, TEXT_EMBEDDING)
        self._embed_all = generation(embed_all, EmbedAllBody, {JSON: (list[list[list[float]]],)}, TEXT_EMBEDDING)
        self._embed_sparse = generation(embed_sparse, EmbedAllBody, {JSON: (list[list[SparseValue]],)}, TEXT_EMBEDDING)
        self._similarity = generation(similarity, SimilarityBody, {JSON: (list[float],)}, TEXT_EMBEDDING)
        self._rerank = generation(rerank, RerankBody, {JSON: (list[Rank],)}, TEXT_RANKING)
        documents = RerankDocumentsDialect(facts, budget=budget)
        self._any_rerank = msgspec.structs.replace(
            self._rerank,
            dialects=(rerank, documents),
            claims={"documents": documents},
            bodies={JSON: (RerankBody, RerankDocumentsBody)},
            answers={JSON: (list[Rank], RerankResponse)},
        )
        self._predict = generation(
            predict, PredictBody, {JSON: (list[Prediction], list[list[Prediction]])}, TEXT_RANKING
        )
        if properties.pools:  # otherwise, these paths are TGI's
            self.prefixes = (*self.prefixes, *_MODEL_PATHS)
            described = self.documentation
            self.documentation = msgspec.structs.replace(
                described, names={**described.names, **_MODEL_BODIES}, bounds={**described.bounds, **_MODEL_BOUNDS}
            )
            self.native = self.root = self._embed if properties.embeds else self._rerank

    def routes(self) -> Sequence[Route]:
        embed_all, embed_sparse = "Embed each token of texts.", "Embed texts sparsely."
        return (
            Route("POST", "/embed", "embed", TAG, "Embed texts.", self._embed),
            Route("POST", "/embed_all", "embed_all", TAG, embed_all, self._embed_all),
            Route("POST", "/embed_sparse", "embed_sparse", TAG, embed_sparse, self._embed_sparse),
            Route("POST", "/similarity", "similarity", TAG, "Compare texts with another.", self._similarity),
            Route("POST", "/rerank", "rerank", TAG, "Sort texts by how well they match a query.", self._any_rerank),
            Route("POST", "/predict", "predict", TAG, "Classify texts.", self._predict),
            *(self._model_routes() if self._properties.pools else ()),
        )

    def _model_routes(self) -> Sequence[Route]:
        tokens = Document(
            find=tokenize_texts,
            read=self._read_texts,
            bodies={JSON: (TokenizeTextsBody,)},
            answers={JSON: (list[list[MarkedSpan]],)},
            dialects=self._dialects,
            errors=READING,
        )
        texts = Document(
            find=decode_ids,
            read=self._read_ids,
            bodies={JSON: (DecodeBody,)},
            answers={JSON: (list[str],)},
            dialects=self._dialects,
            errors=READING,
        )
        info = Probe(
            reply=self._info, answers={JSON: (EmbeddingInfo,)}, dialects=self._dialects, errors=(EngineNotReady,)
        )
        return (
            Route("POST", "/tokenize", "tokenize", TAG, "Split texts into tokens.", tokens),
            Route("POST", "/decode", "decode", TAG, "Turn token ids into texts.", texts),
            Route("GET", "/info", "get_model_info", TAG, "Get the model's name and limits.", info),
        )

    def _info(self, model: ServedModel) -> Reply:
        try:
            capabilities = model.loaded.capabilities
        except EngineNotReady as error:
            return self._dialects[0].error(error)
        options, labels = self._properties, capabilities.labels
        kind = ModelType(embedding=PoolingName(capabilities.pooling))
        if options.ranks:
            ids = LabelIds(
                {str(place): label for place, label in enumerate(labels)},
                {label: place for place, label in enumerate(labels)},
            )
            kind = ModelType(reranker=ids) if len(labels) == 1 else ModelType(classifier=ids)
        info = EmbeddingInfo(
            model_id=model.root,
            model_sha=None,
            model_dtype=capabilities.dtype,
            served_model_name=model.name,
            model_type=kind,
            max_concurrent_requests=options.job_queue_size,
            max_input_length=capabilities.max_input_tokens,
            max_batch_tokens=options.max_rolling_batch_prefill_tokens or capabilities.max_input_tokens,
            max_batch_requests=capabilities.max_num_seqs,
            max_client_batch_size=options.max_sequences,
            auto_truncate=False,
            tokenization_workers=self._workers,
            version=__version__,
            sha=None,
            docker_label=None,
        )
        return Reply(200, encode(info))

    def router_error(self, status: int, kind: str, message: str) -> object:  # noqa: ARG002
        return EmbeddingErrorResponse(message, "Backend" if status >= 500 else "Validation")
