"""OpenAI's routes for speech: transcriptions, and translations into English.

Source: OpenAI's API reference. The bodies are forms, and a task's processes answer them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from formatters.openai import transcriptions as answers
from formatters.openai.errors import error_document, status_error
from formatters.openai.schemas import OpenAIError
from formatters.openai.transcriptions import TranscriptFormat
from lmi_handlers.apis.api import Api, Context
from lmi_handlers.apis.base import Dialect, Payload, Reply
from lmi_handlers.apis.documentation import Documentation
from lmi_handlers.apis.openai.dialect import NOBODYS_MODEL, status_of
from lmi_handlers.apis.routes import EVENTS, GENERATING, JSON, TEXT, Endpoint, Kinds, Route
from lmi_handlers.config.tasks import SPEECH
from lmi_handlers.core.conversion import conversion_error
from lmi_handlers.core.errors import (
    InvalidRequest,
    LMIError,
    ModelNotFound,
    UnsupportedFeature,
    UnsupportedMediaType,
)
from lmi_handlers.serving.parsed import Parsed

FORM = "multipart/form-data"
PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations")

NO_SPEECH = dict.fromkeys(PATHS, f"this server generates text; speech needs a Whisper model (option.task={SPEECH})")
"""What servers with an engine answer on these paths."""

Granularity = Literal["segment", "word"]
Parts = Sequence[tuple[str, bytes]]

_BRACKETS = "[]"
"""Ends the names of lists. OpenAI's client for Python sends them, others leave them out."""

_LISTS = ("timestamp_granularities", "include")


class TranslationBody(msgspec.Struct, frozen=True, kw_only=True):
    """A sound, and how to write down what is said. `file` is the name of the part with the sound, for the document."""

    file: Annotated[str, Meta(extra_json_schema={"format": "binary"})]
    model: str | None = None
    prompt: str | None = None
    response_format: TranscriptFormat = "json"
    temperature: Annotated[float, Meta(ge=0, le=1)] = 0.0

    @property
    def parameters(self) -> dict[str, Any]:
        """Those of the task."""
        return {"prompt": self.prompt, "temperature": self.temperature, "details": True, "task": "translate"}


class TranscriptionBody(TranslationBody, frozen=True, kw_only=True):
    """A sound in the language `language`, and how to write down what is said."""

    language: str | None = None
    timestamp_granularities: list[Granularity] | None = None
    stream: bool = False
    include: list[str] = []
    chunking_strategy: str | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        more = {"task": "transcribe", "language": self.language or None, "stream": self.stream}
        if "word" in (self.timestamp_granularities or ()):
            more["return_timestamps"] = "word"
        return {**super().parameters, **more}

    def check(self) -> None:
        """Raise `InvalidRequest` for fields that are not supported, or not together."""
        if self.timestamp_granularities and self.response_format != "verbose_json":
            raise InvalidRequest("needs response_format=verbose_json", field="timestamp_granularities")
        if self.stream and self.response_format not in ("json", "text"):
            raise UnsupportedFeature(f"is not supported with response_format={self.response_format}", field="stream")
        if self.include:
            raise UnsupportedFeature("is not supported: there are no log probabilities of tokens", field="include")
        if self.chunking_strategy not in (None, "auto"):
            raise UnsupportedFeature(
                "must be 'auto': long sounds are always cut where it is quiet", field="chunking_strategy"
            )


class SpeechDialect(Dialect):
    """Reads the forms of a route, whose fields are those of `body`, and writes OpenAI's errors."""

    error_type = OpenAIError

    def __init__(self, body: type[TranslationBody], names: Sequence[str]) -> None:
        """`names` are those of the served model."""
        self.body = body
        self._names = names

    def parse(self, payload: Payload) -> Parsed:  # noqa: ARG002  the body is no JSON
        raise UnsupportedMediaType(f"Expected request with `Content-Type: {FORM}`")

    def error(self, error: LMIError) -> Reply:
        return Reply(status_of(error), error_document(error))

    def read(self, parts: Parts) -> tuple[TranslationBody, bytes, tuple[str, ...]]:
        """Return what the parts of a form ask for, the sound, and the names of ignored ones. Raises `InvalidRequest`."""
        fields: dict[str, Any] = {}
        sound = b""
        for given, value in parts:
            name = given.removesuffix(_BRACKETS)
            if name == "file":
                fields[name], sound = "", value
                continue
            text = value.decode(errors="replace")
            if name in _LISTS:
                fields.setdefault(name, []).append(text)
            elif text:  # an empty field is one that was left empty
                fields[name] = text
        ignored = tuple(name for name in fields if name not in self.body.__struct_fields__)
        try:
            body = msgspec.convert(fields, self.body, strict=False)
        except msgspec.ValidationError as error:
            raise conversion_error(error, self.body) from error
        if body.model not in (*NOBODYS_MODEL, *self._names):
            raise ModelNotFound(f"The model {str(body.model)[:200]!r} does not exist")
        if isinstance(body, TranscriptionBody):
            body.check()
        elif "stream" in ignored and fields["stream"].lower() not in ("false", "0"):
            raise UnsupportedFeature("is not supported for translations", field="stream")
        return body, sound, ignored

    @staticmethod
    def alias(field: str) -> str:
        """Return the name that a field of the task's body has in the form."""
        return "file" if field == "inputs" else field.removeprefix("parameters.")


class Transcribed(Endpoint, frozen=True, kw_only=True):
    """Answers a form with the transcript of its sound."""

    errors: Kinds = (*GENERATING, ModelNotFound)


class SpeechApi(Api):
    """OpenAI's routes of a server whose model turns speech into text. It has no others of OpenAI's."""

    prefixes = ("/v1",)
    documentation = Documentation(
        names={
            "CreateTranscriptionRequest": TranscriptionBody,
            "CreateTranslationRequest": TranslationBody,
        },
        examples={
            answers.Transcription: {"text": "Hello.", "usage": {"type": "duration", "seconds": 2}},
        },
    )

    def __init__(self, context: Context) -> None:
        documents = {JSON: (answers.Transcription, answers.TranscriptionVerbose), TEXT: (str,)}
        events = {EVENTS: (answers.TranscriptDelta, answers.TranscriptDone)}
        self._transcription, self._translation = (
            Transcribed(
                dialects=(SpeechDialect(body, context.properties.served_names),),
                bodies={FORM: (body,)},
                answers=documents | more,
            )
            for body, more in ((TranscriptionBody, events), (TranslationBody, {}))
        )

    def routes(self) -> Sequence[Route]:
        written, translated = "Write down what is said in a sound.", "Translate what is said into English."
        return (
            Route("POST", PATHS[0], "create_transcription", "OpenAI", written, self._transcription),
            Route("POST", PATHS[1], "create_translation", "OpenAI", translated, self._translation),
        )

    def router_error(self, status: int, kind: str, message: str) -> object:  # noqa: ARG002  not in this API
        return status_error(status, message)
