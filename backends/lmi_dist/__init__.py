"""`lmi-dist`: until LMI 0.33, AWS's own build of vLLM with additional parameters.

The `lmi_dist` package is used if it is installed. Otherwise vLLM is used, with lmi-dist's option names. `unsupported`
applies to vLLM. What the package does not support is read from the package once it has loaded.
"""

from __future__ import annotations

from backends import vllm
from backends.lmi_dist.options import LmiDistOptions
from lmi_handlers.config.declaration import BackendDeclaration, Handler

DECLARATION = BackendDeclaration(
    name="lmi_dist",
    location="backends.lmi_dist.backend:LmiDistBackend",
    requires=("lmi_dist|vllm",),
    install=vllm.DECLARATION.install,
    options=LmiDistOptions,
    reads=vllm.DECLARATION.reads,
    choices={"dtype": ("auto", "fp32", "fp16", "bf16")},
    defaults=vllm.DECLARATION.defaults,
    remote=vllm.DECLARATION.remote,
    passes_options=True,
    rolling_batch=("lmi-dist", "lmi_dist"),
    handlers={"djl_python.lmi_dist": Handler(rolling_batch="lmi-dist")},
    unsupported=vllm.DECLARATION.unsupported,
    conditional={
        "cache_salt": "not supported by the `lmi_dist` package, whose prefix cache has no salts",
        "thinking_token_budget": "not supported by the `lmi_dist` package",
    },
)
