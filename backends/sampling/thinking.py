"""Ends a model's thoughts when they reach their cap."""

from __future__ import annotations

from collections.abc import Sequence

from lmi_handlers.core.thinking import ThinkingMarks


class ThinkingCap:
    """Follows one sequence token by token, and says which token must come next once it has thought enough.

    Each of the sequence's thoughts may have `budget` tokens between its marks, as in vLLM. A thought that the prompt has
    begun continues, with those of its tokens that are in the prompt. If the thought's last tokens happen to begin the
    forced end, only the rest of that is forced.
    """

    def __init__(self, marks: ThinkingMarks, budget: int, prompt_token_ids: Sequence[int]) -> None:
        self._marks = marks
        self._budget = budget
        self._window = max(map(len, (*marks.begins, *marks.ends, marks.forced_end)))
        self._length = _unfinished(prompt_token_ids, marks)  # tokens of the current thought, None if there is none
        # The last tokens in which a mark may begin. A mark never reaches back over another one.
        last = self._window if self._length is None else min(self._window, self._length)
        self._recent = list(prompt_token_ids[len(prompt_token_ids) - last :])
        self._forced: list[int] = []  # in reverse
        self._force_if_due()

    @property
    def forced(self) -> int | None:
        """The token that must come next, or None if the model is free."""
        return self._forced[-1] if self._forced else None

    def record(self, token_id: int) -> None:
        """Take the next token, which is `forced` unless that is None."""
        if self._forced:
            self._forced.pop()
            return
        self._recent.append(token_id)
        del self._recent[: -self._window]
        if self._length is None:
            if self._marked(self._marks.begins):
                self._turn(0)
        elif self._marked(self._marks.ends):
            self._turn(None)
        else:
            self._length += 1
        self._force_if_due()

    def _force_if_due(self) -> None:
        if self._length is None or self._length < self._budget:
            return
        end, recent = self._marks.forced_end, tuple(self._recent)
        begun = next(size for size in range(len(end) - 1, -1, -1) if recent[len(recent) - size :] == end[:size])
        self._forced = list(reversed(end[begun:]))
        self._turn(None)

    def _marked(self, alternatives: tuple[tuple[int, ...], ...]) -> bool:
        return _ends_with(self._recent, alternatives, len(self._recent))

    def _turn(self, length: int | None) -> None:
        self._length = length
        self._recent.clear()


def _unfinished(token_ids: Sequence[int], marks: ThinkingMarks) -> int | None:
    """Return the number of tokens after the begin of the thought that `token_ids` end in, or None if they end in none."""
    last = marks.special.union(mark[-1] for mark in (*marks.begins, *marks.ends))
    for end in range(len(token_ids), 0, -1):
        if token_ids[end - 1] not in last:  # most of them, and a prompt may be long
            continue
        if _ends_with(token_ids, marks.begins, end):
            return len(token_ids) - end
        if token_ids[end - 1] in marks.special or _ends_with(token_ids, marks.ends, end):
            return None
    return None


def _ends_with(token_ids: Sequence[int], alternatives: tuple[tuple[int, ...], ...], end: int) -> bool:
    """True if the first `end` of `token_ids` end with one of `alternatives`."""
    return any(len(mark) <= end and tuple(token_ids[end - len(mark) : end]) == mark for mark in alternatives)
