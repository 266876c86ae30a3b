"""Examples of what TEI's routes answer, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from formatters.tei import schemas
from lmi_handlers import __version__
from lmi_handlers.text.spans import MarkedSpan

ANSWERS: Mapping[Any, object] = {
    schemas.Rank: schemas.Rank(index=0, score=0.9182),
    schemas.Prediction: schemas.Prediction(0.9182, "LABEL_0"),
    schemas.SparseValue: schemas.SparseValue(2784, 1.25),
    list[list[list[float]]]: [[[0.0125, -0.0371, 0.0518]]],
    list[str]: ["hello"],
    MarkedSpan: MarkedSpan(2784, "deep", special=False, start=8, stop=12),
    schemas.EmbeddingInfo: schemas.EmbeddingInfo(
        model_id="my-model",
        model_sha=None,
        model_dtype="float32",
        served_model_name="my-model",
        model_type=schemas.ModelType(embedding=schemas.PoolingName("mean")),
        max_concurrent_requests=1000,
        max_input_length=512,
        max_batch_tokens=512,
        max_batch_requests=32,
        max_client_batch_size=1024,
        auto_truncate=False,
        tokenization_workers=1,
        version=__version__,
        sha=None,
        docker_label=None,
    ),
}
"""By type."""
