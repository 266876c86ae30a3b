"""Let the model's own formatter write the answer, in its process."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from formatters.base import Formatter
from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.outputs import TextDelta, Token
from lmi_handlers.core.request import GenerationRequest, RenderedPrompt
from lmi_handlers.custom_code.formatting.client import Calls
from lmi_handlers.custom_code.formatting.messages import Begin, OutputToken, Records, Tokens

NewCalls = Callable[[], Calls]


class TokenOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a request, for an output formatter. The fields are those of `Begin`."""

    place: str
    parameters: bytes
    tgi_compat: bool
    context: bytes


class TokenFormatter(Formatter):
    """Sends the tokens of a request to the process. As in LMI, the response has no `Content-Type`.

    A stream waits for the formatter after each step. Other answers only wait at the end.
    """

    content_type = ""
    waits = True

    def __init__(
        self,
        request: GenerationRequest,
        prompts: tuple[RenderedPrompt, ...],
        *,
        options: TokenOptions,
        new_calls: NewCalls,
    ) -> None:
        super().__init__(request, prompts)
        self.streams = request.stream
        self._options = options
        self._new_calls = new_calls
        self._calls: Calls | None = None
        self._unread = 0
        self._pieces: list[list[bytes]] = [[] for _ in prompts]
        self._running = len(prompts) * request.sampling_params.n
        self._hides_special = request.sampling_params.skip_special_tokens
        self._places: list[int] = []

    def feed(self, delta: TextDelta) -> bytes:
        calls = self._calls or self._begin()
        reason = delta.finish_reason
        calls.send(
            Tokens(
                calls.number,
                delta.index,
                self._tokens(delta.tokens),
                None if reason is None else reason.value,
                self._tokens(delta.prompt_tokens),
            )
        )
        self._running -= reason is not None
        if self.streams:
            return calls.receive().data
        self._places.append(delta.index // self.request.sampling_params.n)
        return b""

    def finish(self) -> bytes:
        """Return the whole answer if this is not a stream: what the formatter has written for each prompt, in order."""
        if self._calls is not None:
            for place in self._places:
                self._pieces[place].append(self._calls.receive().data)
        return b"".join([b"".join(pieces) for pieces in self._pieces])

    def error(self, error: LMIError) -> bytes:
        """Return LMI's record for an error in a stream."""
        return msgspec.json.encode({"error": str(error), "code": 424}) + b"\n"

    def close(self) -> None:
        if self._calls is not None:
            self._calls.close(forget=self._running > 0)

    def _begin(self) -> Calls:
        self._calls = calls = self._new_calls()
        options, request = self._options, self.request
        prompts = [(prompt.text, list(prompt.token_ids)) for prompt in self.prompts]
        calls.send(
            Begin(
                number=calls.number,
                place=options.place,
                request_id=request.request_id,
                prompts=prompts,
                samples=request.sampling_params.n,
                parameters=options.parameters,
                tgi_compat=options.tgi_compat,
                context=options.context,
            )
        )
        return calls

    def _tokens(self, tokens: tuple[Token, ...]) -> list[OutputToken]:
        """Return the tokens as messages have them. If special tokens are skipped, their text is empty."""
        hides = self._hides_special
        return [
            OutputToken(
                token.id,
                "" if token.special and hides else token.text,
                token.logprob,
                token.special,
                tuple(self._tokens(token.top)) if token.top else (),
            )
            for token in tokens
        ]


class RecordRewriter:
    """Sends the documents or records that a formatter writes to the process, which returns what to send instead."""

    def __init__(self, place: str, new_calls: NewCalls) -> None:
        self._place = place
        self._new_calls = new_calls
        self._calls: Calls | None = None

    def rewrite(self, data: bytes, *, streams: bool) -> bytes:
        """Return what replaces a document, or records of a stream. Raises the error that ends the request."""
        if not data:
            return data
        if self._calls is None:
            self._calls = self._new_calls()
        self._calls.send(Records(self._calls.number, self._place, data, streams))
        return self._calls.receive().data

    def close(self) -> None:
        """Called once there is nothing more to rewrite. May be called twice."""
        if self._calls is not None:
            self._calls.close(forget=False)
