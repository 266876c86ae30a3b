"""Comparing messages by the facts in them, so that a sentence stands only once, in the product, and can be improved.

Facts are the words that carry a message: names, numbers, values, and a noun where there is none of these. A colon after
the first marks the field at fault, as `InvalidRequest` writes it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import TracebackType
from typing import Generic, TypeVar

import pytest

from lmi_handlers.core.errors import EngineError, LMIError, RequestError

E = TypeVar("E", bound=BaseException)
_BASES = (LMIError, RequestError, EngineError)


def says(text: object, facts: str) -> bool:
    """Return whether a line of the text has all words of `facts`, whole and in any order. `1` is not in `1.5` or `-1`."""
    return any(all(_has(line, fact) for fact in facts.split()) for line in str(text).splitlines() or [""])


class Said(str):
    """Facts that equal every text that says them: for texts in a document or a list."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # equal texts have different hashes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and says(other, str(self))

    def __ne__(self, other: object) -> bool:
        return not self == other


def tell(texts: Sequence[object], facts: Sequence[str]) -> bool:
    """Return whether there are as many texts as `facts`, and each says those in its place."""
    return len(texts) == len(facts) and all(map(says, texts, facts))


def raises(kind: type[E] | tuple[type[E], ...], facts: str, *, code: str | None = None) -> _Raises[E]:
    """Fail if the block does not raise an error of the kind that says `facts`. An `LMIError` must have the code, too.

    By default the code is that of the class, so that neither an heir nor another cause of the class passes.
    """
    return _Raises(kind, facts, code)


class _Raises(Generic[E]):
    def __init__(self, kind: type[E] | tuple[type[E], ...], facts: str, code: str | None) -> None:
        self._raises = pytest.raises(kind)
        self._kind = kind
        self._facts = facts
        self._code = code

    def __enter__(self) -> pytest.ExceptionInfo[E]:
        self._caught = self._raises.__enter__()
        return self._caught

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> bool:
        if not self._raises.__exit__(kind, error, frames):
            return False
        if isinstance(error, LMIError) and (codes := self._codes()):
            assert error.code in codes, f"{error.code}: {error}"
        assert says(error, self._facts), f"{error} does not say {self._facts}"
        return True

    def _codes(self) -> set[str]:
        """Return the codes that the error may have. None for a base class, which no error has itself."""
        if self._code is not None:
            return {self._code}
        kinds = self._kind if isinstance(self._kind, tuple) else (self._kind,)
        return {kind.code for kind in kinds if issubclass(kind, LMIError)} - {base.code for base in _BASES}


def _has(text: str, fact: str) -> bool:
    before = r"(?<![\w-])(?<!\d[.,])" if fact[0].isdigit() else r"(?<!\w)" if _in_word(fact[0]) else ""
    after = r"(?!\w|[.,]\d)" if fact[-1].isdigit() else r"(?!\w)" if _in_word(fact[-1]) else ""
    return re.search(before + re.escape(fact) + after, text) is not None


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "_"
