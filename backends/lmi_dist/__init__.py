"""`lmi-dist`: vLLM with lmi-dist's option names, as in LMI since 0.33.

Before, it was AWS's own build of vLLM, whose wheel `lmi_dist` is neither public nor built any more.
"""

from __future__ import annotations

from backends import vllm
from backends.lmi_dist.options import LmiDistOptions
from lmi_handlers.config.declaration import BackendDeclaration, LmiHandler

DECLARATION = BackendDeclaration(
    name="lmi_dist",
    location="backends.lmi_dist.backend:LmiDistBackend",
    requires=vllm.DECLARATION.requires,
    install=vllm.DECLARATION.install,
    options=LmiDistOptions,
    reads=vllm.DECLARATION.reads,
    choices={"dtype": ("auto", "fp32", "fp16", "bf16")},
    defaults=vllm.DECLARATION.defaults,
    without_effect=vllm.DECLARATION.without_effect,
    remote=vllm.DECLARATION.remote,
    passes_options=True,
    rolling_batch=("lmi-dist", "lmi_dist"),
    handlers={"djl_python.lmi_dist": LmiHandler(rolling_batch="lmi-dist")},
    unsupported=vllm.DECLARATION.unsupported,
    conditional=vllm.DECLARATION.conditional,
)
