"""A sequence's addition to the engine's counters.

vLLM's own statistics would cost time in every step. Its scheduler keeps the same counts in its record of a request.
"""

from __future__ import annotations

from vllm.v1.request import Request

from lmi_handlers.core.engine_counters import EngineCounters


def of_lookup(record: Request, num_cached_tokens: int) -> EngineCounters:
    """Return the counts of the prompt's lookup in the prefix cache."""
    return EngineCounters(prefix_cache_queries=record.num_prompt_tokens, prefix_cache_hits=num_cached_tokens)


def of_run(record: Request) -> EngineCounters:
    """Return the counts of a sequence that has ended, except those of its lookup."""
    speculation = record.spec_decode_metrics
    if speculation is None:
        return EngineCounters(num_preemptions=record.num_preemptions)
    return EngineCounters(
        spec_decode_num_draft_tokens=speculation.num_draft_tokens,
        spec_decode_num_accepted_tokens=sum(tokens * steps for tokens, steps in enumerate(speculation.histogram)),
        num_preemptions=record.num_preemptions,
    )
