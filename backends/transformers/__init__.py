"""Serves any causal language model of the transformers library, with a rolling batch on CPU and GPU."""

from __future__ import annotations

from backends.paged.options import DEFAULT_BATCH_SIZE
from backends.transformers.options import TransformersOptions
from lmi_handlers.config.declaration import BackendDeclaration, Handler

DECLARATION = BackendDeclaration(
    name="transformers",
    location="backends.transformers.backend:TransformersBackend",
    requires=("torch", "transformers", "accelerate"),
    install="lmi-handlers[transformers]",
    options=TransformersOptions,
    reads=(
        "model_id",
        "revision",
        "trust_remote_code",
        "max_rolling_batch_size",
        "max_rolling_batch_prefill_tokens",
        "max_model_len",
        "dtype",
        "limit_mm_per_prompt",
    ),
    defaults={"max_rolling_batch_size": DEFAULT_BATCH_SIZE},
    rolling_batch=("scheduler",),
    handlers={"djl_python.huggingface": Handler()},
    unsupported={"adapters": "the weights are served as they are"},
)
