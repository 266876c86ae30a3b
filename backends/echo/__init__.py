"""A deterministic engine without a model, for tests, benchmarks and developing clients."""

from __future__ import annotations

from backends.echo.options import DEFAULT_BATCH_SIZE, EchoOptions
from lmi_handlers.config.declaration import BackendDeclaration

DECLARATION = BackendDeclaration(
    name="echo",
    location="backends.echo.backend:EchoBackend",
    pooling="backends.echo.backend:EchoBackend",
    options=EchoOptions,
    reads=("max_rolling_batch_size", "max_model_len"),
    defaults={"max_rolling_batch_size": DEFAULT_BATCH_SIZE},
    needs_model=False,
    unsupported={
        "bad_words": "the answer repeats the prompt, whatever it contains",
        "allowed_token_ids": "the answer repeats the prompt, whatever it contains",
        "structured_outputs": "the answer repeats the prompt, whatever its format",
        "prompt_lookup_num_tokens": "the answer takes no computing",
        "watermark": "the answer repeats the prompt and cannot be watermarked",
        "adapters": "there is no model to adapt",
    },
)
