"""An engine behind a server that takes and returns token ids. It may run on another machine, or not be Python at all."""

from __future__ import annotations

from backends.continuation import CONTINUED
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
    checks_options=True,
    needs_weights=False,
    unsupported={
        "watermark": "vLLM only supports a different watermark, which is chosen for the whole engine, and the others have none",
        "prompt_lookup_num_tokens": "the remote engine has its own settings for speculation",
        "thinking_token_budget": "the remote engine's marks of thoughts cannot be seen from outside",
        "adapters": "the remote engine loads its adapters itself",
    },
    conditional={
        "typical_p": "only supported with llama.cpp's protocol",
        "repetition_penalty": "not supported with SGLang's protocol, which leaves out the tokens of the prompt",
        "seed": "not supported with SGLang's protocol unless it has `--enable-deterministic-inference`",
        "logprobs": "at most 19 with vLLM's protocol, and at most what its `--max-logprobs` allows",
        "prompt_logprobs": "only supported with vLLM's protocol, and the answer is not streamed",
        "min_tokens": "not supported with llama.cpp's protocol",
        "presence_penalty": "not supported with llama.cpp's protocol, which counts the tokens of the prompt, too",
        "frequency_penalty": "not supported with llama.cpp's protocol, which counts the tokens of the prompt, too",
        "bad_words": "only supported with vLLM's protocol",
        "allowed_token_ids": "only supported with vLLM's protocol",
        "structured_outputs": "no `regex` with llama.cpp's protocol",
        "cache_salt": "only supported with vLLM's protocol",
        "continuation": CONTINUED,
    },
    untested=("SGLang: its protocol is written against the published request and response types, and was not run.",),
)
