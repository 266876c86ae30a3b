"""The cost of a request, recorded on its way through a web worker. For the log and for response headers."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from lmi_handlers.core.meter import Paid


class Owner(NamedTuple):
    """The client of a request: the label of its API key, and its tenant's digest. Each is "" if there is none."""

    key_label: str = ""
    tenant: str = ""


class Usage(msgspec.Struct):
    """The cost of one request so far. Times are in seconds, and None until they are known.

    `started` is the monotonic time at which the body had arrived. `validation_time` is how long parsing and tokenising
    took. `queue_time` is how long the request waited in the engine's queue. `first_token_time` is the time from
    `started` to the first token, `last_token_time` to the last one. `cached_tokens` is how many of the `prompt_tokens`
    came from the engine's prefix cache, 0 if the engine does not say. The request was sent to the engine as `sequences`
    sequences of at most `max_tokens` tokens each, `samples` per prompt. `longest_sequence` is the number of tokens of
    the longest one that has finished. `finish_reasons` has one entry per finished sequence. `truncated` is the option
    whose time limit has ended the text, if any, and `continuation` the token with which a request continues it.
    `continued_tokens` is how many tokens earlier answers have, which this one continues. `joined` is set if the request
    got the answer of an equal one; then `paid` is the part for which others pay, None for all of it. `device` is what
    the engine says it runs on. `key_label` is the label of the client's API key, "" if none is needed, and `tenant` the
    name that the request gives, "" if it gives none, as it may be shown. `tenant_digest` tells tenants apart.

    `engine_time` is the request's share of the engine's steps, or of the calls of the model's own code. `kv_block_time` adds
    up how long it has held each block of the KV cache (see `Meter`), None if the engine does not tell. `block_size` is how
    many tokens a block holds, 0 if that is not known.
    """

    started: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    sequences: int = 0
    max_tokens: int = 0
    samples: int = 1
    longest_sequence: int = 0
    validation_time: float | None = None
    queue_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finish_reasons: list[str] = []
    truncated: str | None = None
    joined: bool = False
    paid: Paid | None = None
    continuation: str | None = None
    continued_tokens: int = 0
    device: str = ""
    key_label: str = ""
    tenant: str = ""
    tenant_digest: str = ""
    engine_time: float | None = None
    kv_block_time: float | None = None
    block_size: int = 0

    @property
    def owner(self) -> Owner:
        """The client that it counts for."""
        return Owner(self.key_label, self.tenant_digest)

    @property
    def is_first(self) -> bool:
        """True unless another request has got the beginning of its answer."""
        return not self.joined or self.paid == Paid()

    def charged(self) -> Usage:
        """Return what the request itself has to pay: of an answer that several get, each part is charged once."""
        if not self.joined:
            return self
        charged = msgspec.structs.replace(
            self,
            prompt_tokens=0,
            cached_tokens=self.cached_tokens if self.is_first else 0,
            generated_tokens=0,
            queue_time=self.queue_time if self.is_first else None,
            engine_time=0.0,
            kv_block_time=0.0,
        )
        if (paid := self.paid) is not None:
            charged.generated_tokens = max(0, self.generated_tokens - paid.tokens)
            charged.engine_time = max(0.0, (self.engine_time or 0.0) - paid.engine_time)
            if self.kv_block_time is None:
                charged.kv_block_time = self._estimate(paid.overlap)
            else:
                charged.kv_block_time = max(0.0, self.kv_block_time - (paid.kv_block_time or 0.0))
        return charged

    @property
    def kv_block_seconds(self) -> float:
        """`kv_block_time`, or else the estimate, 0 if there is none."""
        return self.kv_block_time or self.kv_block_estimate or 0.0

    @property
    def kv_block_estimate(self) -> float | None:
        """An estimate in place of `kv_block_time`, in seconds, None if there is no basis for one.

        It assumes that each sequence held its prompt and, on average, half of what was generated, from the queue to its last
        token.
        """
        return self._estimate(0.0)

    def _estimate(self, paid: float) -> float | None:
        """Return the estimate without the first `paid` seconds."""
        last, validation, queue = self.last_token_time, self.validation_time, self.queue_time
        if self.kv_block_time is not None or not self.block_size or last is None or validation is None or queue is None:
            return None
        tokens = self.prompt_tokens * self.samples + self.generated_tokens / 2
        return max(0.0, last - validation - queue - paid) * tokens / self.block_size
