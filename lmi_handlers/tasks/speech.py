"""Transcribes and translates speech with Whisper models."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType
from transformers import AutoFeatureExtractor, AutoModelForSpeechSeq2Seq

from backends.sounds import SoundReader
from backends.transformers.loading import load_model
from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import ConfigError, InvalidRequest
from lmi_handlers.tasks.loading import load_processor
from lmi_handlers.tasks.task import Parameters, Task
from lmi_handlers.tasks.whisper import (
    COLDEST,
    LANGUAGES,
    MAX_PIECES,
    SpokenPiece,
    Wanted,
    Whisper,
    check_generation_config,
)
from lmi_handlers.text.checkpoint_tokenizer import load_library_tokenizer

MAX_PROMPT = 10000
"""Characters of a prompt, of which the models read only the last 223 tokens."""

_ENGLISH = ("en", "english")
_FRAMES_PER_SECOND = 100


class GenerateParameters(Parameters, frozen=True):
    """Of the library's `generate`."""

    language: Annotated[str, Meta(min_length=1)] | UnsetType | None = UNSET
    task: Literal["transcribe", "translate"] | UnsetType = UNSET
    temperature: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    max_new_tokens: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    prompt: Annotated[str, Meta(max_length=MAX_PROMPT)] | UnsetType | None = UNSET


class SpeechParameters(GenerateParameters, frozen=True):
    """Of the library's pipeline, and of `generate`.

    With `details`, the result has the fields of OpenAI's `verbose_json`. With `stream`, the answer has a line of JSON for
    each piece of the sound, and a last one with the result.
    """

    return_timestamps: bool | Literal["word"] = False
    generate_kwargs: GenerateParameters = GenerateParameters()
    generation_parameters: GenerateParameters = GenerateParameters()
    details: bool = False
    stream: bool = False

    def wanted(self) -> Wanted:
        """Return those that change what is computed."""
        own = {name: value for name, value in self.given().items() if name in GenerateParameters.__struct_fields__}
        given = self.generate_kwargs.given() | self.generation_parameters.given() | own
        if given.get("temperature", 0.0) < COLDEST:
            given["temperature"] = 0.0
        words = self.return_timestamps == "word"
        return Wanted(**given, timestamps=self.details or bool(self.return_timestamps), words=words)


class SpeechRecognition(Task):
    """Turns speech into text: a file as the body, or base64 in JSON."""

    parameters = SpeechParameters
    unwraps = True
    reads_files = True
    compact = True

    def __init__(self, whisper: Whisper) -> None:
        self._whisper = whisper
        self._reader = SoundReader(whisper.rate)

    @classmethod
    def load(cls, name: str, path: Path, properties: ServingProperties) -> Task:
        extractor = load_processor(AutoFeatureExtractor, path, properties)
        tokenizer = load_library_tokenizer(path, trust_remote_code=properties.trust_remote_code)
        model = load_model(path, properties, lambda _config: AutoModelForSpeechSeq2Seq)
        if model.config.model_type != "whisper":
            raise ConfigError(f"option.task={name} needs a Whisper model, but {path} has a {type(model).__name__}")
        check_generation_config(model)
        return cls(Whisper(model, extractor, tokenizer))

    def items(self, inputs: object) -> tuple[list[Any], bool]:
        given = inputs if isinstance(inputs, list) else [inputs]
        return self._reader.read(given, self.is_unwanted), given is not inputs

    def check(self, items: Sequence[Any], parameters: SpeechParameters) -> None:
        wanted = parameters.wanted()
        if self._whisper.languages and wanted.language is not None:
            self._whisper.language_token(wanted.language)
        elif not self._whisper.languages:
            if wanted.task == "translate":
                raise InvalidRequest("this model only transcribes English", field="parameters.task")
            if (wanted.language or "en").lower() not in _ENGLISH:
                raise InvalidRequest("this model only transcribes English", field="parameters.language")
        self._whisper.prompt_ids(wanted.prompt)
        if wanted.words and not self._whisper.times_words:
            raise InvalidRequest(
                "'word' is not possible: the model's generation_config.json has no alignment_heads, or not of its decoder",
                field="parameters.return_timestamps",
            )
        if parameters.stream and len(items) != 1:
            raise InvalidRequest("needs a single sound", field="parameters.stream")

    def run(self, items: list[Any], parameters: SpeechParameters) -> list[Any]:
        pieces: list[list[SpokenPiece]] = [[] for _ in items]
        for number, piece in self._whisper.hear(items, parameters.wanted(), MAX_PIECES, self.is_unwanted):
            pieces[number].append(piece)
        return [self._result(*each, parameters) for each in zip(items, pieces, strict=True)]

    def stream(self, items: list[Any], parameters: SpeechParameters) -> Iterator[Any] | None:
        return self._stream(items, parameters) if parameters.stream else None

    def _stream(self, items: list[Any], parameters: SpeechParameters) -> Iterator[Any]:
        """Yield `{"text": ..}` for each piece, which are computed one by one, and then the result."""
        pieces = []
        for _, piece in self._whisper.hear(items, parameters.wanted(), 1, self.is_unwanted):
            pieces.append(piece)
            yield {"text": piece.text}
        yield self._result(items[0], pieces, parameters)

    def _result(self, sound: Any, pieces: list[SpokenPiece], parameters: SpeechParameters) -> dict[str, Any]:
        text = "".join(piece.text for piece in pieces)
        if parameters.details:
            return {"text": text, **_details(pieces, parameters), "duration": len(sound) / self._whisper.rate}
        if not parameters.return_timestamps:
            return {"text": text}
        timed = [part for piece in pieces for part in (piece.words or piece.segments)]
        chunks = [{"text": part.text, "timestamp": [_rounded(part.start), _rounded(part.end)]} for part in timed]
        return {"text": text, "chunks": chunks}


def _details(pieces: list[SpokenPiece], parameters: SpeechParameters) -> dict[str, Any]:
    """Return the language, segments and words as OpenAI's `verbose_json` has them."""
    code = (pieces[0].language or "<|en|>")[2:-2]
    temperature = parameters.wanted().temperature
    segments: list[dict[str, Any]] = []
    for piece in pieces:
        for segment in piece.segments:
            encoded = segment.text.encode()
            segments.append(
                {
                    "id": len(segments),
                    "seek": round(piece.start * _FRAMES_PER_SECOND),
                    "start": _rounded(segment.start),
                    "end": _rounded(segment.end),
                    "text": segment.text,
                    "tokens": segment.tokens,
                    "temperature": temperature,
                    "avg_logprob": piece.avg_logprob,
                    "compression_ratio": len(encoded) / len(zlib.compress(encoded)),
                    "no_speech_prob": piece.no_speech_prob,
                }
            )
    words = [
        {"word": word.text.strip(), "start": _rounded(word.start), "end": _rounded(word.end)}
        for piece in pieces
        for word in piece.words
    ]
    return {"language": LANGUAGES.get(code, code), "segments": segments, "words": words}


def _rounded(seconds: float) -> float:
    return round(seconds, 2)
