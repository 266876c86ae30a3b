"""Examples of what vLLM's routes answer, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from formatters.vllm import schemas

ANSWERS: Mapping[Any, object] = {
    schemas.RerankResponse: schemas.RerankResponse(
        id="rerank-5f0c",
        model="my-model",
        usage=schemas.RerankUsage(18, 18),
        results=[
            schemas.RerankResult(
                index=0,
                document=schemas.RerankDocument("Deep Learning is a kind of machine learning.", None),
                relevance_score=0.9182,
            )
        ],
    ),
    schemas.ScoreResponse: schemas.ScoreResponse(
        id="score-5f0c",
        object="list",
        created=1767225600,
        model="my-model",
        data=[schemas.ScoreData(0, "score", 0.9182)],
        usage=schemas.ScoreUsage(18, 18, 0, None),
    ),
    schemas.ClassifyResponse: schemas.ClassifyResponse(
        id="classify-5f0c",
        object="list",
        created=1767225600,
        model="my-model",
        data=[schemas.ClassifyData(0, "POSITIVE", [0.0625, 0.9375], 2)],
        usage=schemas.ScoreUsage(8, 8, 0, None),
    ),
    schemas.PoolingResponse: schemas.PoolingResponse(
        id="pooling-5f0c",
        object="list",
        created=1767225600,
        model="my-model",
        data=[schemas.PoolingData(0, "pooling", [0.5, -0.5, 0.5, 0.5])],
        usage=schemas.ScoreUsage(8, 8, 0, None),
    ),
    schemas.VllmTokenizeResponse: schemas.VllmTokenizeResponse(2, 8192, [72, 105], None),
    schemas.DetokenizeResponse: schemas.DetokenizeResponse("What is Deep Learning?"),
}
"""By type."""
