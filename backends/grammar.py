r"""Translates structured outputs to llguidance grammars and tracks a sequence's position in one. Needs no torch.

Where the library offers a choice, TGI's behaviour is used: `\d`, `\w` and `\s` match ASCII only, and JSON has at most
one space after a comma or colon.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, grammar_from, regex_to_lark
from tokenizers import Tokenizer

from backends.json_schema import explicit_schema, strict_schema
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.sampling_params import StructuredOutputs

if TYPE_CHECKING:
    from typing_extensions import Self

_ASCII_CLASSES = "dws"
_LONGEST_CAUSE = 300
_REMEMBERED = 4  # one may take a hundred megabytes
_BEHIND_START = "at 1(8): "  # the library's prefix for schema and regex errors: a position in our text
# A mask is computed within a step, so all sequences wait for it. It takes at most about 100 ms. If these limits do not
# suffice, the sequence fails. A lexer state takes up to 2 kB.
_LIMITS = LLParserLimits(step_max_items=10_000, max_lexer_states=50_000, verbose_errors=False)


class Vocabulary(msgspec.Struct, frozen=True):
    """The model's tokens. `tokenizer_file` is a tokenizer.json, `vocab_size` is the length of a row of logits."""

    tokenizer_file: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]

    def load(self) -> LLTokenizer:
        """Read the file, which takes a third of a second. Raises `ValueError` if llguidance does not support it."""
        tokenizer = Tokenizer.from_file(self.tokenizer_file)
        num_tokens = max(tokenizer.get_vocab().values(), default=0) + 1  # the model may have fewer or more
        return LLTokenizer(
            tokenizer.to_str(), n_vocab=max(self.vocab_size, num_tokens), eos_token=list(self.eos_token_ids) or None
        )


def grammar_text(wanted: StructuredOutputs) -> str:
    """Translate to llguidance's Lark dialect. Raises `InvalidRequest`.

    `StructuredOutputs.grammar` is either GBNF, whose first rule is `root ::=`, or that Lark dialect already.
    """
    try:
        if wanted.json is not None:
            return _json_grammar(wanted.json, strict=wanted.strict)
        if wanted.json_object:
            return _json_grammar('{"type": "object"}')
        if wanted.regex is not None:
            return f"start: /{regex_to_lark(wanted.regex, _ASCII_CLASSES)}/"
        if wanted.choice is not None:
            # In capitals it is a terminal. As a rule, each choice would be a separate item for the parser.
            choices = " | ".join(json.dumps(choice) for choice in wanted.choice)
            return f"start: CHOICE\nCHOICE: {choices}"
        return grammar_from("grammar", wanted.grammar or "")
    except (RecursionError, ValueError) as error:
        raise InvalidRequest(f"cannot be compiled: {_cause(str(error))}", field="structured_outputs") from error


def _json_grammar(schema: str, *, strict: bool = True) -> str:
    return f"start: %json {json.dumps(strict_schema(explicit_schema(schema, strict=strict)))}"


class GrammarMatcher:
    """The position of one sequence in its grammar. Raises `InvalidRequest` if `text` cannot be compiled.

    The constructor releases the GIL. It also computes the first mask, which takes longer than later ones.
    """

    def __init__(self, tokenizer: LLTokenizer, text: str, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._matcher = LLMatcher(tokenizer, text, log_level=0, limits=_LIMITS)
        self._mask = self._matcher.compute_bitmask()
        if (error := self.error) is not None:
            raise InvalidRequest(f"cannot be compiled: {error}", field="structured_outputs")

    def fork(self) -> Self:
        """Return one at the same position that goes on by itself. It takes a fraction of the time of compiling."""
        other = copy.copy(self)
        other._matcher = self._matcher.deep_copy()  # noqa: SLF001  a copy of this one
        return other

    def allowed(self) -> npt.NDArray[np.bool_]:
        """Return for each token id whether it may come next, `[vocab_size]`, including end-of-sequence ids."""
        mask = np.frombuffer(self._mask, dtype=np.uint8)
        return np.unpackbits(mask, count=self._vocab_size, bitorder="little").view(np.bool_)

    def advance(self, token_id: int) -> None:
        """Record the next token."""
        if self._matcher.consume_token(token_id) and not self._matcher.is_stopped():
            self._mask = self._matcher.compute_bitmask()

    def resume(self, token_ids: Sequence[int]) -> None:
        """Take the position after `token_ids`, which were generated before. Raises `InvalidRequest` if they cannot be.

        10,000 tokens take about 10 ms.
        """
        if not self._matcher.consume_tokens(list(token_ids)):
            raise InvalidRequest("the answer so far does not match structured_outputs", code="invalid_continuation")
        if self._matcher.is_stopped():
            raise InvalidRequest("the answer is complete (structured_outputs)", code="continuation_finished")
        self._mask = self._matcher.compute_bitmask()

    @property
    def ended(self) -> bool:
        """True if the text is complete and nothing may follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def error(self) -> str | None:
        """The reason why the grammar cannot continue, or None if it can or has ended."""
        return _cause(self._matcher.get_error()) if self._matcher.is_error() else None


class GrammarMatchers:
    """Makes the matcher of each sequence. A grammar that many samples of a request have is compiled once."""

    def __init__(self, tokenizer: LLTokenizer, vocab_size: int) -> None:
        self._compiled = lru_cache(_REMEMBERED)(lambda text: GrammarMatcher(tokenizer, text, vocab_size))

    def __call__(self, text: str) -> GrammarMatcher:
        """Return a matcher at the beginning. Any thread may call this. Raises `InvalidRequest` if `text` cannot be compiled."""
        return self._compiled(text).fork()


def _cause(message: str) -> str:
    """Return the library's message on one line, without the lines that point at a position."""
    if message.startswith("NoExtension"):
        return "nothing can match it"
    message = message.removeprefix(_BEHIND_START)
    lines = [line.strip() for line in message.splitlines() if line.strip(" ^") and " | " not in line]
    return " ".join(lines)[:_LONGEST_CAUSE]
