"""Finds the tokens by which an engine knows that the model is thinking."""

from __future__ import annotations

from lmi_handlers.core.thinking import ThinkingMarks
from lmi_handlers.text.output_parsers.reasoning import ReasoningFormat
from lmi_handlers.text.tokenizer import Tokenizer


def thinking_marks(format: ReasoningFormat, tokenizer: Tokenizer, vocab_size: int) -> ThinkingMarks | None:  # noqa: A002
    """Return the marks of `format`, or None if the model has no tokens for them: its ids are below `vocab_size`."""

    def token_ids(alternatives: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        encoded = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in alternatives]
        known = [ids for ids in encoded if ids and max(ids) < vocab_size]
        # A family's older models write as text what is one token in later ones, and none writes both.
        return tuple([ids for ids in known if len(ids) == 1] or known)

    begins, ends = token_ids(format.begins), token_ids(format.ends)
    forced = token_ids((format.forced_end,)) if format.forced_end else ends[:1]
    if not (begins and ends and forced):
        return None
    return ThinkingMarks(begins=begins, ends=ends, forced_end=forced[0], special=tokenizer.special_token_ids)
