"""The marks by which engines know that a model is thinking."""

from __future__ import annotations

import msgspec


class ThinkingMarks(msgspec.Struct, frozen=True, kw_only=True):
    """The marks around a model's thoughts, as token ids. `begins` and `ends` each list alternatives, none of them empty.

    `forced_end` is what ends thoughts that have reached their cap. `special` are the control tokens, such as the end of
    a turn. A prompt does not end in the middle of a thought if one of them follows the thought's begin.
    """

    begins: tuple[tuple[int, ...], ...]
    ends: tuple[tuple[int, ...], ...]
    forced_end: tuple[int, ...]
    special: frozenset[int] = frozenset()
