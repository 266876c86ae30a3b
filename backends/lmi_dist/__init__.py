"""`lmi-dist`: until LMI 0.33, AWS's own build of vLLM with additional parameters.

The `lmi_dist` package is used if it is installed. Otherwise vLLM is used, with lmi-dist's option names. `UNSUPPORTED`
applies to vLLM. What the package does not support is read from the package once it has loaded.
"""

from __future__ import annotations

from backends.vllm import PASSES_OPTIONS as PASSES_OPTIONS
from backends.vllm import UNSUPPORTED as VLLM_UNSUPPORTED

REQUIRES = ("lmi_dist|vllm",)

EXTRA = "vllm"

UNSUPPORTED = dict(VLLM_UNSUPPORTED)
