"""A stand-in for TensorRT-LLM 1.2 that needs no GPU, made from its published interface.

Names, types and defaults of every argument are read from `tests/data/tensorrt_llm-1.2.json` while this is imported; what
is written out here is behaviour. It is stricter than the library where the library would go wrong silently: it checks
the types of all arguments and raises `Misuse` for a `SamplingParams` that is used again or changed, and for a guide or an
adapter that the engine was not started for, which the library ignores.

The model answers with the prompt, then with `end_id`; without an end it begins again. An adapter adds its number to each
token; nothing is made to match a guide. `controls` sets its pace and faults.
"""

from __future__ import annotations

from tensorrt_llm.llmapi.llm import LLM
from tensorrt_llm.sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams"]
