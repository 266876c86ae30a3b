"""Examples of what vLLM's routes answer, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from formatters.vllm import responses

ANSWERS: Mapping[Any, object] = {
    responses.RerankResponse: responses.RerankResponse(
        id="rerank-5f0c",
        model="my-model",
        usage=responses.RerankUsage(18, 18),
        results=[
            responses.RerankResult(
                index=0,
                document=responses.RerankDocument("Deep Learning is a kind of machine learning.", None),
                relevance_score=0.9182,
            )
        ],
    ),
    responses.ScoreResponse: responses.ScoreResponse(
        id="score-5f0c",
        object="list",
        created=1767225600,
        model="my-model",
        data=[responses.ScoreData(0, "score", 0.9182)],
        usage=responses.ScoreUsage(18, 18, 0, None),
    ),
    responses.VllmTokenizeResponse: responses.VllmTokenizeResponse(2, 8192, [72, 105], None),
    responses.DetokenizeResponse: responses.DetokenizeResponse("What is Deep Learning?"),
}
"""By type."""
