"""Comparisons of answers with the shadow engine, for metrics and the log."""

from __future__ import annotations

import enum

import msgspec


class ShadowOutcome(str, enum.Enum):
    """The reasons why an answer was or was not compared."""

    COMPARED = "compared"
    DROPPED = "dropped"
    NOT_READY = "not_ready"
    TOO_LONG = "too_long"
    FAILED = "failed"


class ShadowComparison(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of so many `tokens` as the shadow engine sees it.

    `agreeing` of them are the tokens that it would have chosen. `shadow_nats` is the sum of its negative log probabilities
    and `model_nats` that of the model's own engine, None if that gives none. `is_greedy` tells whether the answer's tokens
    were the most probable ones. The shadow has read `read_tokens` in `seconds`, prompt and answer together.
    """

    tokens: int
    agreeing: int
    shadow_nats: float
    model_nats: float | None
    is_greedy: bool
    read_tokens: int
    seconds: float

    @property
    def sampling(self) -> str:
        """The value of the metrics' label, one of `SAMPLINGS`."""
        return SAMPLINGS[not self.is_greedy]

    @property
    def fields(self) -> dict[str, object]:
        """The fields of the log line. The divergence is in nats per token."""
        divergence = None if self.model_nats is None else (self.shadow_nats - self.model_nats) / self.tokens
        return {
            "sampling": self.sampling,
            "tokens": self.tokens,
            "agreement": round(self.agreeing / self.tokens, 4),
            "divergence": None if divergence is None else round(divergence, 5),
            "loss": round(self.shadow_nats / self.tokens, 5),
            "read_tokens": self.read_tokens,
            "shadow_ms": round(1000 * self.seconds, 1),
        }


SAMPLINGS = ("greedy", "sampled")
