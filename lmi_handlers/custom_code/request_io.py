"""`djl_python.request_io`: the classes that LMI's second generation of formatters receives and returns.

The names are LMI's, because published formatters use them. Source: LMI's pages on custom formatters.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from collections.abc import Sequence as ListOfTokens
from dataclasses import dataclass, field
from functools import cache
from types import CodeType
from typing import Any


class Token:
    """A token. `log_prob` is None if it was not computed, `special_token` is true for control tokens."""

    __slots__ = ("error_msg", "id", "log_prob", "request_id", "special_token", "text")

    def __init__(
        self,
        id: int,  # noqa: A002  LMI's name
        text: str,
        log_prob: float | None = None,
        special_token: bool | None = None,
        error_msg: str | None = None,
    ) -> None:
        self.id = id
        self.text = text
        self.log_prob = log_prob
        self.special_token = special_token
        self.error_msg = error_msg
        self.request_id: int | None = None

    def __repr__(self) -> str:
        return f"Token({self.as_dict()})"

    def as_dict(self) -> dict[str, Any]:
        """Return LMI's token object."""
        found: dict[str, Any] = {"id": self.id, "text": self.text, "log_prob": self.log_prob}
        if self.special_token:
            found["special_token"] = self.special_token
        if self.error_msg:
            found["error_msg"] = self.error_msg
        return found

    def as_tgi_dict(self) -> dict[str, Any]:
        """Return TGI's token object, as LMI has it."""
        found: dict[str, Any] = {"id": self.id, "text": self.text, "logprob": self.log_prob}
        return found | {"special": self.special_token} if self.special_token else found


@dataclass
class Sequence:
    """A generated sequence. `top_tokens` has the most probable tokens at each position, if the request asked for them."""

    tokens: list[Token] = field(default_factory=list)
    top_tokens: list[list[Token]] = field(default_factory=list)
    cumulative_log_prob: float = 0.0
    finish_reason: str | None = None
    stop_reason: str | None = None
    _last_token_index: int | None = None
    _next: int = field(init=False, default=0)
    _next_top: int = field(init=False, default=0)

    def set_next_token(self, token: Token, is_last_token: bool = False) -> None:
        """Add a token."""
        self.tokens.append(token)
        if is_last_token:
            self._last_token_index = len(self.tokens) - 1

    def set_next_top_tokens(self, top_tokens: list[Token]) -> None:
        """Add the most probable tokens of the next position."""
        self.top_tokens.append(top_tokens)

    def has_next_token(self) -> bool:
        """Tell whether there is a token that `get_next_token` has not returned yet."""
        return self._next < len(self.tokens)

    def has_next_top_tokens(self) -> bool:
        """Tell whether `get_next_top_tokens` has something to return."""
        return self._next_top < len(self.top_tokens)

    def get_next_token(self) -> tuple[Any, ...]:
        """Return the next token, or None, and whether it is the first and the last one.

        LMI 0.32 put the token's index second. Both `token, first, last = ..` and `token, index, first, last = ..` are
        in use, so the caller gets as many values as it unpacks, and four if it does not unpack them.
        """
        caller = sys._getframe(1)  # noqa: SLF001  there is no other way to know
        index, wanted = self._next, _unpacked(caller.f_code, caller.f_lasti)
        if index >= len(self.tokens):
            return (None, False, False) if wanted == _OLD else (None, 0, False, False)
        self._next = index + 1
        token, last = self.tokens[index], index == self._last_token_index
        return (token, index == 0, last) if wanted == _OLD else (token, index, index == 0, last)

    def get_last_token(self) -> Token | None:
        """Return the last token, or None if the sequence has not ended."""
        return None if self._last_token_index is None else self.tokens[self._last_token_index]

    def get_next_top_tokens(self) -> list[Token] | None:
        """Return the most probable tokens of the next position, or None."""
        if not self.has_next_top_tokens():
            return None
        self._next_top += 1
        return self.top_tokens[self._next_top - 1]


_OLD = 3


@cache
def _unpacked(code: CodeType, position: int) -> int | None:
    """Return into how many names the call at `position` of the bytecode is unpacked, or None if it is not."""
    following = (step for step in dis.get_instructions(code) if step.offset > position)
    step = next((step for step in following if step.opname != "CACHE"), None)
    return step.arg if step is not None and step.opname == "UNPACK_SEQUENCE" else None


@dataclass
class RequestInput:
    """A request. Classes derived from it may have fields of their own, which the output formatter sees."""

    request_id: int | None = None
    client_request_id: str | None = None
    output_formatter: Callable[..., Any] | str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    server_parameters: dict[str, Any] = field(default_factory=dict)
    tgi_compat: bool = False


@dataclass
class TextInput(RequestInput):
    """A request for text."""

    input_text: str | list[str] | None = None
    adapters: Any = None
    tokenizer: Any = None


@dataclass
class RequestOutput:
    """The output of a request so far."""

    request_id: int
    input: RequestInput
    finished: bool = False


@dataclass
class TextGenerationOutput(RequestOutput):
    """The output of each sequence so far. The best sequence is only known once all are complete."""

    sequences: dict[int, Sequence] = field(default_factory=dict)
    best_sequence_index: int = 0
    prompt_tokens_details: ListOfTokens[Token] = field(default_factory=list)
    other_sequences_indices: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Add the first sequence."""
        self.sequences.setdefault(self.best_sequence_index, Sequence())

    def get_tokens_as_dict(self, sequence_index: int = 0) -> list[dict[str, Any]]:
        """Return the objects of a sequence's tokens."""
        return self._shown(self.sequences[sequence_index].tokens)

    def get_prompt_tokens_as_dict(self) -> list[dict[str, Any]]:
        """Return the objects of the prompt's tokens."""
        return self._shown(self.prompt_tokens_details)

    def get_top_tokens_as_dict(self, sequence_index: int = 0) -> list[list[dict[str, Any]]]:
        """Return the objects of the most probable tokens at each position."""
        return [self._shown(tokens) for tokens in self.sequences[sequence_index].top_tokens]

    def _shown(self, tokens: ListOfTokens[Token]) -> list[dict[str, Any]]:
        return [token.as_tgi_dict() if self.input.tgi_compat else token.as_dict() for token in tokens]
