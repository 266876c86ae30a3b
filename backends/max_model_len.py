"""The limit of a prompt with its answer: `option.max_model_len`, and what a model's files say."""

from __future__ import annotations

from lmi_handlers.core.errors import ConfigError

UNBOUNDED_MAX_MODEL_LEN = 4096
"""Default for a model that states no limit (ALiBi, a recurrent state)."""


def choose_max_model_len(limit: int | None, asked: int | None, *stated: object) -> int:
    """Return `asked`, or else the smallest of `limit` and what other files have `stated`.

    `limit` is what the model can compute. In `stated`, everything but a sensible number is ignored. Raises
    `ConfigError` if `asked` exceeds the limit.
    """
    if asked is not None:
        if limit is not None and asked > limit:
            raise ConfigError(f"option.max_model_len: must be at most {limit}, the model's limit, got {asked}")
        return asked
    known = [length for length in (limit, *stated) if isinstance(length, int) and 0 < length < _NO_LIMIT]
    return min(known, default=UNBOUNDED_MAX_MODEL_LEN)


_NO_LIMIT = 2**31  # transformers writes 1e30 if the tokenizer sets no limit
