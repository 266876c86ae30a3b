"""Counters of an engine, for the metrics."""

from __future__ import annotations

import msgspec


class EngineCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Totals since the model was loaded, under vLLM's names. They never decrease; what an engine does not count is 0.

    `prefix_cache_queries` are the tokens of prompts, and of answers that continue, that were looked up in the prefix
    cache, and `prefix_cache_hits` those of them that were found. The `external` ones are about a cache outside of the
    engine's memory: what was not found there is looked up outside, and what is found outside counts as found in both. A
    sequence that resumes after a preemption is not looked up again. Of the `spec_decode_num_draft_tokens` that were
    proposed, `spec_decode_num_accepted_tokens` were kept. `num_preemptions` counts how often a running sequence had to
    give up its memory.
    """

    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    external_prefix_cache_queries: int = 0
    external_prefix_cache_hits: int = 0
    spec_decode_num_draft_tokens: int = 0
    spec_decode_num_accepted_tokens: int = 0
    num_preemptions: int = 0

    def __add__(self, other: EngineCounters) -> EngineCounters:
        return EngineCounters(
            **{field: getattr(self, field) + getattr(other, field) for field in self.__struct_fields__}
        )
