"""The whole protocol between web workers and the process that runs a model's formatters.

Each message is a MessagePack array tagged with its name, framed as in `lmi_handlers.workers.channel`. A web worker has
one connection, and chooses a `number` for each request. `FormatInput`, `Tokens` and `Records` are answered in order, by
`Formatted` or `FormattingFailed`. After `FormattingFailed`, the process forgets the number.
"""

from __future__ import annotations

from typing import Literal

import msgspec

# From a web worker


class FormatInput(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Call the input formatter. `properties` are the request's headers, `parts` its content: (name, bytes) in order."""

    number: int
    place: str
    properties: dict[str, str]
    parts: list[tuple[str, bytes]]


class Begin(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """An answer begins, of which `Tokens` will come, with `samples` sequences per prompt. There is no reply.

    `prompts` are their texts and token ids. `parameters` is the request's JSON object of them. `context` is what the
    input formatter returned beside the body.
    """

    number: int
    place: str
    request_id: str
    prompts: list[tuple[str, list[int]]]
    samples: int
    parameters: bytes
    tgi_compat: bool
    context: bytes

    @property
    def adapter(self) -> str:
        """The adapter whose formatter it is, "" for the model's own."""
        return self.place.partition("@")[0]


class OutputToken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A token with its text. `top` has the most probable ones at its place."""

    id: int
    text: str
    logprob: float | None = None
    special: bool = False
    top: tuple[OutputToken, ...] = ()


class Tokens(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """New tokens of sequence `index`, and why it has ended, if it has. `prompt_tokens` is sent with the first ones."""

    number: int
    index: int
    tokens: list[OutputToken]
    finish_reason: str | None = None
    prompt_tokens: list[OutputToken] = []


class Forget(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Nobody waits for the answer that has begun any more. There is no reply."""

    number: int


class Records(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """JSON documents as they would be sent without the formatter: one, or those of a step of a stream, framed."""

    number: int
    place: str
    data: bytes
    streams: bool


class Known(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """New requests use the formatters of `FormattersReady` with this number. There is no reply."""

    change: int


# From the process


class ScriptFormatters(msgspec.Struct, frozen=True, array_like=True):
    """The formatters of a file. `tokens` formatters get tokens, `response` ones OpenAI's objects, `dict` ones LMI's dicts.

    Messages name them as `place`: those of an adapter that is replaced have another one.
    """

    input: bool
    output: Literal["tokens", "response", "dict"] | None
    place: str = ""


class FormattersReady(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The first message, and again on every change: `scripts` has the loaded files by adapter; "" is the model's own.

    `change` counts the changes. It is answered by `Known`.
    """

    scripts: dict[str, ScriptFormatters]
    change: int = 0


class Formatted(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The bytes of the body or of the answer. `context` is opaque: it is sent back with `Begin`."""

    number: int
    data: bytes
    context: bytes = b""


class FormattingFailed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The formatter has raised an error, or has returned what it must not."""

    number: int
    error: str


FromWorker = FormatInput | Begin | Tokens | Forget | Records | Known
Call = FormatInput | Begin | Tokens | Forget | Records
ToWorker = FormattersReady | Formatted | FormattingFailed
