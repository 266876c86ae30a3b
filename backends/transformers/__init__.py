"""Any causal language model of the transformers library, with a rolling batch on CPU and GPU."""

from __future__ import annotations

UNSUPPORTED = {
    "bad_words": "the sampler knows tokens, not words",
    "structured_outputs": "no grammar is compiled yet",
    "watermark": "the sampler does not mark yet",
    "adapters": "weights are served as they are",
}
