"""OpenAI's transcriptions. Source: OpenAI's API reference."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from formatters.base import Response, encode, event

TranscriptFormat = Literal["json", "text", "srt", "vtt", "verbose_json"]

DELTA: Literal["transcript.text.delta"] = "transcript.text.delta"
DONE: Literal["transcript.text.done"] = "transcript.text.done"


class DurationUsage(Response):
    """The length of the sound in seconds, rounded up."""

    type: Literal["duration"]
    seconds: int


class Transcription(Response):
    """What is said."""

    text: str
    usage: DurationUsage


class TranscriptionWord(Response):
    """A word, from `start` to `end` in seconds."""

    word: str
    start: float
    end: float


class TranscriptionSegment(Response):
    """A part of the text. `avg_logprob` and `no_speech_prob` are of the piece of at most 30 seconds that it is from.

    `seek` is the beginning of that piece, in hundredths of a second.
    """

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class TranscriptionVerbose(Response):
    """What is said, in which language, and when."""

    task: Literal["transcribe", "translate"]
    language: str
    duration: float
    text: str
    usage: DurationUsage
    segments: list[TranscriptionSegment] | UnsetType = UNSET
    words: list[TranscriptionWord] | UnsetType = UNSET


class TranscriptDelta(Response):
    """The text of the next piece."""

    type: Literal["transcript.text.delta"]
    delta: str


class TranscriptDone(Response):
    """The whole text, at the end of a stream."""

    type: Literal["transcript.text.done"]
    text: str
    usage: DurationUsage


class Heard(msgspec.Struct, frozen=True):
    """What the model has heard, as the task's processes tell it."""

    text: str
    language: str
    duration: float
    segments: list[TranscriptionSegment]
    words: list[TranscriptionWord]

    @property
    def usage(self) -> DurationUsage:
        return DurationUsage("duration", math.ceil(self.duration))


class TranscriptPiece(msgspec.Struct, frozen=True):
    """The text of a piece of the sound. `duration` is that of the whole sound, and only beside the whole text."""

    text: str
    duration: float | UnsetType = UNSET

    @property
    def is_whole(self) -> bool:
        """Tell whether this is the end, a `Heard`."""
        return self.duration is not UNSET


CONTENT_TYPES: dict[TranscriptFormat, str] = {
    "json": "application/json",
    "verbose_json": "application/json",
    "text": "text/plain; charset=utf-8",
    "srt": "text/plain; charset=utf-8",
    "vtt": "text/plain; charset=utf-8",
}


def transcript(
    heard: Heard,
    kind: TranscriptFormat,
    task: Literal["transcribe", "translate"],
    granularities: Iterable[str] = ("segment",),
) -> bytes:
    """Return the answer in the format that was asked for. `granularities` are those of `verbose_json`."""
    text = heard.text.strip()
    match kind:
        case "json":
            return encode(Transcription(text, heard.usage))
        case "text":
            return f"{text}\n".encode()
        case "srt":
            cues = (f"{number}\n{_cue(segment, ',')}" for number, segment in enumerate(heard.segments, 1))
            return "".join(cues).encode()
        case "vtt":
            return "".join(["WEBVTT\n\n", *(_cue(segment, ".") for segment in heard.segments)]).encode()
        case "verbose_json":
            verbose = TranscriptionVerbose(task, heard.language, heard.duration, text, heard.usage)
            if "segment" in granularities:
                verbose.segments = heard.segments
            if "word" in granularities:
                verbose.words = heard.words
            return encode(verbose)


def delta(piece: TranscriptPiece, *, is_first: bool) -> bytes:
    """Return the event with the text of a piece."""
    return event(encode(TranscriptDelta(DELTA, piece.text.lstrip() if is_first else piece.text)))


def done(heard: Heard) -> bytes:
    """Return the last event."""
    return event(encode(TranscriptDone(DONE, heard.text.strip(), heard.usage)))


def _cue(segment: TranscriptionSegment, point: str) -> str:
    """Return the times and the text of a subtitle, whose lines may not be empty: that would end it."""
    text = " ".join(segment.text.replace("-->", "->").split())
    return f"{_time(segment.start, point)} --> {_time(segment.end, point)}\n{text}\n\n"


def _time(seconds: float, point: str) -> str:
    minutes, milliseconds = divmod(round(seconds * 1000), 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{milliseconds // 1000:02}{point}{milliseconds % 1000:03}"
