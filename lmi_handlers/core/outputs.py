"""What comes back: token ids from a backend, then text from the text layer. All of it immutable deltas.

There are a hundred thousand of these a second and none can be part of a cycle, so the garbage collector leaves them out.
"""

from __future__ import annotations

import enum

import msgspec


class FinishReason(str, enum.Enum):
    """Why a sequence ended; each dialect has its own words for these."""

    LENGTH = "length"
    EOS_TOKEN = "eos_token"  # noqa: S105  a token of text, not of access
    STOP_SEQUENCE = "stop_sequence"
    ABORT = "abort"
    ERROR = "error"


class TokenOutput(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What one sequence produced since the last step.

    `token_ids` are new ids only, the end-of-sequence id included. With logprobs asked for, `logprobs` has one natural
    logarithm for each of them and, where k best were asked for, `top_logprobs` has k pairs (id, logprob) for each, best first.
    `prompt_logprobs` comes once, with the first output: one entry for each prompt token, the first None. So does
    `prompt_top_logprobs` where k best were asked for: k pairs for each prompt token, as above, and None for the first.
    `num_prompt_tokens` comes where the prompt has images: so many tokens it has become.
    `error` is the cause where `finish_reason` is ERROR; this sequence alone has failed, because of what its client asked
    for where `invalid_request` is set, in the field `invalid_field` of `SamplingParams` where that is known.
    """

    request_id: str
    token_ids: list[int]
    logprobs: list[float] | None = None
    top_logprobs: list[list[tuple[int, float]]] | None = None
    prompt_logprobs: list[float | None] | None = None
    prompt_top_logprobs: list[list[tuple[int, float]] | None] | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None
    invalid_request: bool = False
    invalid_field: str | None = None
    num_prompt_tokens: int | None = None


class Token(msgspec.Struct, frozen=True, gc=False):
    """A generated (or prompt) token with its text; `special` marks control tokens such as the end of a sequence.

    `text` is this token's share of the answer's: nothing where a character is incomplete yet, shortened by a stop string.
    `data` is the token itself, which may be half a character: always all of it, whatever becomes of the text.
    """

    id: int
    text: str
    logprob: float | None = None
    special: bool = False
    top: tuple[Token, ...] = ()
    data: bytes = b""


class TextDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """New text of sequence `index` and the tokens that it came from.

    `text` is what a reader should see: special tokens left out unless asked for, stop strings cut. The last delta of a
    sequence carries `finish_reason`. `prompt_tokens` comes with the first delta where prompt logprobs were asked for.
    """

    index: int = 0
    tokens: tuple[Token, ...] = ()
    text: str = ""
    finish_reason: FinishReason | None = None
    prompt_tokens: tuple[Token, ...] = ()
