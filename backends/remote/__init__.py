"""An engine behind a server that takes and returns token ids. It may run on another machine, or not be Python at all."""

from __future__ import annotations

from backends.remote.options import DEFAULT_BATCH_SIZE, RemoteOptions
from lmi_handlers.config.declaration import BackendDeclaration

DECLARATION = BackendDeclaration(
    name="remote",
    location="backends.remote.backend:RemoteBackend",
    requires=("aiohttp",),
    install="lmi-handlers[remote]",
    options=RemoteOptions,
    reads=("model_id", "revision", "trust_remote_code", "max_rolling_batch_size", "max_model_len"),
    defaults={"max_rolling_batch_size": DEFAULT_BATCH_SIZE},
    unsupported={
        "typical_p": "vLLM has no such parameter",
        "watermark": "vLLM only supports a different watermark, which is chosen for the whole engine",
        "prompt_lookup_num_tokens": "the remote engine has its own settings for speculation",
        "thinking_token_budget": "the remote engine's marks of thoughts cannot be seen from outside",
        "adapters": "the remote engine loads its adapters itself",
    },
    conditional={
        "logprobs": "at most 19, and at most what `--max-logprobs` of vLLM allows",
        "prompt_logprobs": "the answer is not streamed",
    },
)
