"""`lmi-dist`: LMI's name, until 0.33, for AWS's build of vLLM with parameters of its own.

Where the `lmi_dist` package is installed, it serves; anywhere else vLLM does, under lmi-dist's option names. `UNSUPPORTED`
is about vLLM; what the package cannot do is asked of the package, once it has loaded.
"""

from __future__ import annotations

from backends.vllm import PASSES_OPTIONS as PASSES_OPTIONS
from backends.vllm import UNSUPPORTED as VLLM_UNSUPPORTED

REQUIRES = ("lmi_dist|vllm",)

EXTRA = "vllm"

UNSUPPORTED = dict(VLLM_UNSUPPORTED)
