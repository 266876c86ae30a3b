"""Outputs of requests: token ids from a backend, then text from the text layer, both as immutable deltas.

About 100,000 of these objects are created per second. They cannot be part of a reference cycle, so the garbage
collector does not track them.
"""

from __future__ import annotations

import enum

import msgspec


class FinishReason(str, enum.Enum):
    """The reason for a sequence's end, in the words of LMI and TGI. The other APIs translate them."""

    LENGTH = "length"
    EOS_TOKEN = "eos_token"  # noqa: S105  a text token, not an access token
    STOP_SEQUENCE = "stop_sequence"
    ABORT = "abort"
    ERROR = "error"


class TokenOutput(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The output of one sequence since the last step.

    `token_ids` are only the new ids, including the end-of-sequence id. If logprobs were requested, `logprobs` has the
    natural logarithm of each id's probability. If the k best were requested, `top_logprobs` has k pairs (id, logprob)
    per id, best first.

    `prompt_logprobs` is sent once, with the first output. It has one entry per prompt token; the first one is None.
    `TokenRequest.generated` are not part of the prompt, neither here nor below.
    `prompt_top_logprobs` is sent with it if the k best were requested: k pairs per prompt token, as above, and None
    for the first token.

    `num_prompt_tokens` is set if the prompt has images: its length in tokens, including those of the images.

    `num_cached_tokens` is sent with the first output: how many prompt tokens were taken from the prefix cache. It is None
    if the engine does not say.

    `error` is the cause if `finish_reason` is ERROR. Only this sequence has failed, not the engine. `invalid_request`
    is set if the client's request is to blame, and `invalid_field` is the field of `SamplingParams` at fault, if known.
    `overloaded` is set if the engine had no room for the sequence, and may have it later.

    `embedding` is the result of a request with `PoolingParams`, as little-endian float32 numbers. It comes in the only
    output, which has no tokens and ends with EOS_TOKEN. For "embed_all" it has the vectors of all tokens one after the
    other. For "embed_sparse" it only has the numbers that are not zero, after their indices in the vocabulary as
    little-endian int32 numbers.
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
    overloaded: bool = False
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    embedding: bytes | None = None


class Token(msgspec.Struct, frozen=True, gc=False):
    """A generated (or prompt) token with its text. `special` marks control tokens such as the end of a sequence.

    `text` is this token's share of the answer's text. It is empty while a character is incomplete, and a stop string
    may cut it short. `data` is all bytes of the token, which may be half a character; it does not depend on the text.
    """

    id: int
    text: str
    logprob: float | None = None
    special: bool = False
    top: tuple[Token, ...] = ()
    data: bytes = b""


class TextDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """New text of sequence `index` and the tokens that it came from.

    `text` is what a reader should see: special tokens are left out and stop strings are cut off, unless the request
    asks for them. The last delta of a sequence carries `finish_reason`, and `stop_string` if the text ended at one.
    `prompt_tokens` is sent with the first delta if prompt logprobs were requested. `embedding` is that of the
    `TokenOutput`. `continues` is set in the last delta of a text that another answer continues: whatever parses the text
    then keeps what it holds back.
    """

    index: int = 0
    tokens: tuple[Token, ...] = ()
    text: str = ""
    finish_reason: FinishReason | None = None
    stop_string: str | None = None
    prompt_tokens: tuple[Token, ...] = ()
    embedding: bytes | None = None
    continues: bool = False
