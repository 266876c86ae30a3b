"""The text of one sequence: turns a backend's outputs into text deltas, and cuts them at stop strings."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from lmi_handlers.core.outputs import FinishReason, TextDelta, Token, TokenOutput
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.text.detokenizer import make_detokenizer
from lmi_handlers.text.stop import StopAutomaton, StopMatcher
from lmi_handlers.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Self


class TextRules:
    """Shared by all sequences of a request: the tokenizer and the rules for special tokens and stops. Immutable."""

    def __init__(self, tokenizer: Tokenizer, sampling_params: SamplingParams) -> None:
        self.tokenizer = tokenizer
        self.skip_special_tokens = sampling_params.skip_special_tokens
        self.include_stop = sampling_params.include_stop_str_in_output
        self.min_tokens = sampling_params.min_tokens
        self.ending_ids = tokenizer.eos_token_ids.union(sampling_params.stop_token_ids)
        self.stop_strings = frozenset(sampling_params.stop)
        self.automaton = StopAutomaton(sampling_params.stop) if sampling_params.stop else None

    def stop_matcher(self) -> StopMatcher | None:
        """Return a matcher for one sequence, or None if there are no stop strings."""
        if self.automaton is None:
            return None
        return StopMatcher(self.automaton, include_stop_str_in_output=self.include_stop, min_tokens=self.min_tokens)


class SequenceText:
    """Turns the `TokenOutput`s of one sequence into `TextDelta`s.

    - Each token appears once and in order.
    - The text of a delta is the texts of its tokens, joined. With `skip_special_tokens` it leaves special tokens out,
      but the tokens themselves still have their literal text.
    - A token that a stop string may still cut comes with a later delta, at the latest with the last one.
    - The token that made the engine end the sequence is in the text only with `include_stop_str_in_output`.
    - Tokens after a stop string are dropped.

    If a stop string is the text of a special token, that token also stops the sequence, even if it adds no text.
    """

    def __init__(self, rules: TextRules, prompt_token_ids: Sequence[int], *, index: int = 0) -> None:
        self.index = index
        self.finish_reason: FinishReason | None = None
        """Set with the last delta. The engine does not see stop strings, so the caller must abort it after a match."""
        self._rules = rules
        self._tokenizer = rules.tokenizer
        self._prompt_token_ids = prompt_token_ids
        self._detokenizer = make_detokenizer(
            rules.tokenizer, prompt_token_ids, skip_special_tokens=rules.skip_special_tokens
        )
        self._stop = rules.stop_matcher()
        self._held: deque[Token] = deque()  # the tokens whose pieces the matcher holds

    def feed(self, output: TokenOutput) -> TextDelta:
        """Return what `output` adds.

        Returns an empty delta after the last one: the engine may still produce tokens until the abort arrives.
        """
        if self.finish_reason is not None:
            return TextDelta(index=self.index)
        prompt_tokens: tuple[Token, ...] = ()
        if output.prompt_logprobs is not None:
            prompt_tokens = self._prompt_tokens(output.prompt_logprobs, output.prompt_top_logprobs)
        tokens: list[Token] = []
        text = ""
        end = None if output.finish_reason is None else self._ending_token(output)
        for position, token_id in enumerate(output.token_ids):
            piece = "" if position == end and not self._rules.include_stop else self._detokenizer.feed(token_id)
            token = self._token(output, position, piece)
            if self._stop is None:
                tokens.append(token)
                text += piece
            else:
                text += self._match(self._stop, token, piece, tokens)
                if self._stop.matched is not None:
                    self.finish_reason = output.finish_reason if position == end else FinishReason.STOP_SEQUENCE
                    break
        else:
            if output.finish_reason is not None:
                if self._stop is not None:
                    text += self._release(self._stop.flush(), tokens)
                self.finish_reason = output.finish_reason
        return TextDelta(
            index=self.index,
            tokens=tuple(tokens),
            text=text,
            finish_reason=self.finish_reason,
            stop_string=None if self._stop is None else self._stop.matched,
            prompt_tokens=prompt_tokens,
        )

    def fork(self) -> Self:
        """Return one that goes on from here by itself."""
        other = copy.copy(self)
        other._detokenizer = self._detokenizer.fork()  # noqa: SLF001  a copy of this one
        other._stop = None if self._stop is None else self._stop.fork()  # noqa: SLF001  a copy of this one
        other._held = self._held.copy()  # noqa: SLF001  a copy of this one
        return other

    def interrupt(self) -> TextDelta:
        """Return the last delta of a text that another answer continues. Text that a stop string may still cut stays held."""
        self.finish_reason = FinishReason.LENGTH
        return TextDelta(index=self.index, finish_reason=self.finish_reason, continues=True)

    def _ending_token(self, output: TokenOutput) -> int | None:
        """Return the position of the token that ended the sequence, or None if the engine did not send that token."""
        last = len(output.token_ids) - 1
        if output.finish_reason in _ENDED_BY_TOKEN and last >= 0 and output.token_ids[last] in self._rules.ending_ids:
            return last
        return None

    def _token(self, output: TokenOutput, position: int, piece: str) -> Token:
        token_id = output.token_ids[position]
        special = token_id in self._tokenizer.special_token_ids
        return Token(
            token_id,
            self._tokenizer.token_text(token_id) if special and not piece else piece,
            None if output.logprobs is None else output.logprobs[position],
            special,
            () if output.top_logprobs is None else self._top(output.top_logprobs[position]),
            self._tokenizer.token_bytes[token_id],
        )

    def _match(self, stop: StopMatcher, token: Token, piece: str, tokens: list[Token]) -> str:
        """Hold `token`, move the tokens that are no longer held to `tokens`, and return their text."""
        self._held.append(token)
        if token.special and not piece and token.text in self._rules.stop_strings:
            return self._release(stop.feed_stop(token.text), tokens)
        return self._release(stop.feed(piece), tokens)

    def _release(self, pieces: list[str], tokens: list[Token]) -> str:
        for piece in pieces:
            token = self._held.popleft()
            if token.text != piece and (piece or not token.special):
                token = msgspec.structs.replace(token, text=piece)
            tokens.append(token)
        return "".join(pieces)

    def _top(self, alternatives: list[tuple[int, float]]) -> tuple[Token, ...]:
        tokenizer = self._tokenizer
        return tuple(
            Token(
                token_id,
                tokenizer.token_text(token_id),
                logprob,
                tokenizer.is_special(token_id),
                (),
                tokenizer.token_bytes[token_id],
            )
            for token_id, logprob in alternatives
        )

    def _prompt_tokens(
        self, logprobs: list[float | None], top_logprobs: list[list[tuple[int, float]] | None] | None
    ) -> tuple[Token, ...]:
        tokenizer = self._tokenizer
        detokenizer = make_detokenizer(tokenizer, (), skip_special_tokens=False)
        return tuple(
            Token(
                token_id,
                detokenizer.feed(token_id),
                logprob,
                tokenizer.is_special(token_id),
                self._top(top or []),
                tokenizer.token_bytes[token_id],
            )
            for token_id, logprob, top in zip(
                self._prompt_token_ids, logprobs, top_logprobs or [None] * len(logprobs), strict=True
            )
        )


# Backends do not see stop strings, so their STOP_SEQUENCE means one of `stop_token_ids`.
_ENDED_BY_TOKEN = (FinishReason.EOS_TOKEN, FinishReason.STOP_SEQUENCE)
