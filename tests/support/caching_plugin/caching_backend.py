"""An echo backend that reports a prefix cache: every token of an earlier prompt counts as cached, in its place."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import msgspec

import backends.echo
from backends.echo.backend import EchoBackend, _Sequence
from lmi_handlers.core.engine_counters import EngineCounters
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.request import EncodedPrompt, TokenRequest

DECLARATION = msgspec.structs.replace(
    backends.echo.DECLARATION, name="caching", location="caching_backend:CachingBackend", rolling_batch=()
)


class CachingBackend(EchoBackend):
    """Computes the last token of each prompt, as every engine must, and looks up the others when the sequence starts."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._capabilities = msgspec.structs.replace(self._capabilities, backend="caching")
        self._prompts: list[EncodedPrompt] = []
        self._cached: dict[str, int] = {}
        self._counters = EngineCounters()

    @property
    def counters(self) -> EngineCounters:
        return self._counters

    def add_request(self, request: TokenRequest) -> None:
        super().add_request(request)
        prompt = request.prompt.token_ids
        shared = (
            len([*takewhile(lambda pair: pair[0] == pair[1], zip(prompt, earlier.token_ids, strict=False))])
            for earlier in self._prompts
            if earlier.cache_salt == request.prompt.cache_salt
        )
        cached = min(max(shared, default=0), len(prompt) - 1)
        self._prompts.append(request.prompt)
        self._cached[request.request_id] = cached
        self._counters += EngineCounters(prefix_cache_queries=len(prompt), prefix_cache_hits=cached)

    def _advance(self, sequence: _Sequence) -> TokenOutput | None:
        output = super()._advance(sequence)
        cached = None if output is None else self._cached.pop(output.request_id, None)
        return output if output is None else msgspec.structs.replace(output, num_cached_tokens=cached)
