"""Answers OpenAI's routes for speech: forms with a sound, which a task's processes transcribe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from flask import Response, request
from werkzeug.http import parse_options_header

from formatters.base import event
from formatters.openai.base import DONE
from formatters.openai.errors import error_document
from formatters.openai.transcriptions import CONTENT_TYPES, Heard, TranscriptPiece, delta, done, transcript
from lmi_handlers.apis.openai.transcriptions import FORM, SpeechDialect, TranscriptionBody, TranslationBody
from lmi_handlers.apis.routes import EVENTS
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ClientDisconnected, LMIError, UnsupportedMediaType, aliased
from lmi_handlers.custom_code.client import Invocation
from lmi_handlers.custom_code.messages import Invoke
from lmi_handlers.serving.custom_model import CustomModel
from lmi_handlers.web.exchange import Exchange
from lmi_handlers.web.forms import form_parts


class SpeechView:
    """The view of a route."""

    def __init__(self, model: CustomModel, dialect: SpeechDialect, properties: ServingProperties) -> None:
        self._model = model
        self._dialect = dialect
        self._max_request_size = properties.max_request_size

    def transcribe(self) -> Response:
        """Answer a form."""
        exchange = Exchange(self._dialect)
        try:
            body, sound, ignored = self._dialect.read(self._parts(exchange))
            exchange.name_ignored(ignored)
            parameters = msgspec.json.encode(body.parameters)
            invoke = Invoke(
                exchange.request_id, {"Content-Type": FORM}, [("inputs", sound), ("parameters", parameters)]
            )
            with aliased(self._dialect.alias):
                invocation = self._model.invoke(invoke, exchange.usage, exchange.connected)
                try:
                    return _respond(exchange, body, invocation)
                except BaseException:
                    invocation.close()
                    raise
        except LMIError as error:
            return exchange.refuse(error)

    def _parts(self, exchange: Exchange) -> list[tuple[str, bytes]]:
        mimetype, options = parse_options_header(request.headers.get("Content-Type", ""))
        if mimetype.lower() != FORM:
            raise UnsupportedMediaType(f"Expected request with `Content-Type: {FORM}`")
        return form_parts(exchange.body(self._max_request_size), FORM, options)


def _respond(exchange: Exchange, body: TranslationBody, invocation: Invocation) -> Response:
    if isinstance(body, TranscriptionBody) and body.stream:
        exchange.headers.update({"Cache-Control": "no-cache", "x-accel-buffering": "no"})
        answer = _Events(invocation)
        first = next(answer.rest)
        return exchange.stream(first, answer.rest, EVENTS, answer)
    heard = msgspec.json.decode(b"".join(invocation), type=Heard)
    invocation.close()
    if isinstance(body, TranscriptionBody):
        document = transcript(heard, body.response_format, "transcribe", body.timestamp_granularities or ("segment",))
    else:
        document = transcript(heard, body.response_format, "translate")
    return exchange.document(document, CONTENT_TYPES[body.response_format])


class _Events:
    """The events of a stream: one per piece, and then the whole text. If it fails, the last one has the error."""

    def __init__(self, invocation: Invocation) -> None:
        self.deadline = invocation.deadline.time
        self.failure: LMIError | None = ClientDisconnected()
        self.rest = self._run(invocation)
        self._invocation = invocation

    def close(self) -> None:
        """Stop waiting for the rest."""
        self._invocation.close()

    def _run(self, invocation: Invocation) -> Iterator[bytes]:
        has_begun = False
        try:
            for heard in events(invocation):
                yield heard
                has_begun = True
            self.failure = None
        except LMIError as error:
            if not has_begun:
                raise
            self.failure = error.without_frames()
            yield event(error_document(error)) + DONE


def events(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the event of each piece as soon as its line is there, and the last one once all is."""
    is_first, last = True, b""
    for line in (line for chunk in chunks for line in chunk.splitlines()):  # a batch sends several with one chunk
        piece = msgspec.json.decode(line, type=TranscriptPiece)
        if piece.is_whole:
            last = done(msgspec.json.decode(line, type=Heard)) + DONE
        else:
            yield delta(piece, is_first=is_first)
            is_first = False
    yield last
