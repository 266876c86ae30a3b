"""`lmi-dist`: LMI's name, until 0.33, for AWS's build of vLLM with parameters of its own."""

from __future__ import annotations

from backends.vllm import UNSUPPORTED as VLLM_UNSUPPORTED

UNSUPPORTED = dict(VLLM_UNSUPPORTED)
