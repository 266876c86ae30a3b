"""Reads sounds: WAV files of the model's rate directly, all others in a decoder process with limits.

The samples are float32 from -1 to 1, all channels averaged.
"""

from __future__ import annotations

import base64
import binascii
import importlib.util
import io
import math
import wave
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from backends.limited_process import Exhausted, Expired, LimitedProcess, request_failures
from lmi_handlers.core.errors import (
    ClientDisconnected,
    InvalidRequest,
    PayloadTooLarge,
    UnsupportedFeature,
)
from lmi_handlers.core.request import EncodedSound

MAX_BYTES = 25 << 20
"""Bytes of a file, as in OpenAI's API."""

MAX_SECONDS = 3600
"""Length of all sounds of a request, for which 230 MB are needed."""

DECODER = "backends.sound_decoder"

_SECONDS = 5.0
_SECONDS_PER_SECOND = 0.02
"""CPU time for decoding: `_SECONDS` plus this per second of sound. The slowest legitimate file takes a third of it."""

_LEAST_SECONDS = 0.01

_MAX_CHUNKS = 64
"""Chunks of a WAV file before its samples. `wave` walks through them, and a file of 25 MB can have millions."""

Samples = np.ndarray[Any, Any]


class DecodeSound(msgspec.Struct, frozen=True, array_like=True):
    """Decode the file `data` to samples of `rate`. At most `limit` of them, and one more if there are more."""

    data: bytes
    rate: int
    limit: int


class Decoded(msgspec.Struct, frozen=True, array_like=True):
    """The `samples`, 16 bits each in the machine's byte order, or the reason why there are none.

    `seconds` is the CPU time that this has taken.
    """

    samples: bytes = b""
    reason: str = ""
    seconds: float = 0.0


class SoundReader:
    """Reads sounds for a model that takes samples of `rate`: at most `MAX_SECONDS` per request, `longest` per sound.

    Has a decoder process of its own. Not thread-safe, except `stop`.
    """

    def __init__(self, rate: int, longest: int = MAX_SECONDS) -> None:
        self.rate = rate
        self._longest = longest
        self._decoder = LimitedProcess(DECODER)

    def stop(self) -> None:
        """End the decoder's current file and refuse all later ones. May be called from any thread."""
        self._decoder.kill()

    def close(self) -> None:
        """End the decoder process."""
        self._decoder.close()

    def read(self, files: list[object], is_unwanted: Callable[[], bool] = lambda: False) -> list[Samples]:
        """Return the samples of files, each as bytes or in base64.

        Raises `InvalidRequest`, or `ClientDisconnected` if `is_unwanted()` is true before one of them.
        """
        sounds: list[Samples] = []
        left = MAX_SECONDS * self.rate
        for file in files:
            if is_unwanted():
                raise ClientDisconnected
            question = DecodeSound(as_bytes(file), self.rate, min(left, self._longest * self.rate))
            samples, _ = _read(question, self._decoder, math.inf, _time_limit(question.limit, self.rate))
            sounds.append(samples)
            left -= len(samples)
        return sounds


class PromptSounds(msgspec.Struct, frozen=True):
    """Reads the sounds of prompts for a model that takes samples of `rate`: `longest` seconds of all sounds of a prompt."""

    rate: int
    longest: int = MAX_SECONDS

    def read(self, files: Sequence[EncodedSound], decoder: LimitedProcess, seconds: float) -> list[Samples]:
        """Return the samples of a prompt's sounds, decoded in at most `seconds` of CPU time.

        All of them may take no more time than one sound of `longest` seconds. Raises `InvalidRequest` with the sound's
        field, and `Expired` if `seconds` was too short but that limit allows more.
        """
        sounds: list[Samples] = []
        left = self.longest * self.rate
        limit = _time_limit(left, self.rate)
        for file in files:
            try:
                samples, used = _read(DecodeSound(file.data, self.rate, left), decoder, seconds, limit)
            except InvalidRequest as error:
                raise type(error)(error.message, field=file.field, code=error.code) from error
            sounds.append(samples)
            left -= len(samples)
            seconds, limit = (max(each - used, _LEAST_SECONDS) for each in (seconds, limit))
        return sounds


def _time_limit(samples: int, rate: int) -> float:
    """Return the CPU time in which so many samples must have been decoded."""
    return _SECONDS + _SECONDS_PER_SECOND * samples / rate


def _read(question: DecodeSound, decoder: LimitedProcess, seconds: float, limit: float) -> tuple[Samples, float]:
    """Return a file's samples, and the CPU time that the decoder has taken for them, at most `seconds` and `limit`.

    Raises `InvalidRequest`, or `Expired` if `seconds` was too short but `limit` allows more.
    """
    size, longest = len(question.data), question.limit
    if size > MAX_BYTES:
        raise PayloadTooLarge(f"has {size} bytes; at most {MAX_BYTES} are possible", field="inputs")
    used = 0.0
    try:
        samples = read_wav(question.data, question.rate, longest)
    except UnsupportedFeature:
        if importlib.util.find_spec("av") is None:
            raise
        samples, used = _decode(question, decoder, seconds, limit)
    if len(samples) > longest:
        raise _too_long(longest // question.rate)
    if not samples.size:
        raise InvalidRequest("has no samples", field="inputs")
    return samples, used


def read_wav(data: bytes, rate: int, limit: int) -> Samples:
    """Return the samples of a WAV file. Raises `InvalidRequest`, or `UnsupportedFeature` if a decoder may read the file."""
    needs = "others need PyAV on the server, which the extra `audio` installs"
    try:
        _check_chunks(data)
        with wave.open(io.BytesIO(data)) as file:
            found, width, channels, frames = (
                file.getframerate(),
                file.getsampwidth(),
                file.getnchannels(),
                file.getnframes(),
            )
            if found != rate:
                raise UnsupportedFeature(
                    f"is sampled at {found} Hz; the model needs {rate} Hz, and {needs}", field="inputs"
                )
            if frames > limit:
                raise _too_long(limit // rate, frames / rate)
            raw = file.readframes(frames)
    except (wave.Error, EOFError, RuntimeError) as error:
        raise UnsupportedFeature(
            f"is not a WAV file of PCM samples ({error or 'it is cut off'}); {needs}", field="inputs"
        ) from error
    samples = _samples(raw[: len(raw) // (width * channels) * width * channels], width)
    mono: Samples = samples.reshape(-1, channels).mean(axis=1, dtype=np.float32)
    return mono


def _check_chunks(data: bytes) -> None:
    """Raise `wave.Error` for a file with too much before its samples."""
    if not data.startswith(b"RIFF"):
        return
    place = 12
    for _ in range(_MAX_CHUNKS):
        if data[place : place + 4] in (b"data", b""):
            return
        size = int.from_bytes(data[place + 4 : place + 8], "little")
        place += 8 + size + size % 2
    raise wave.Error(f"it has more than {_MAX_CHUNKS} chunks before its samples")


def as_bytes(item: object) -> bytes:
    """Return the file in a body, which is bytes or base64. Raises `InvalidRequest`."""
    if isinstance(item, bytes):
        return item
    if not isinstance(item, str):
        raise InvalidRequest("must be a sound, as base64, or a list of them", field="inputs")
    try:
        return base64.b64decode(item, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"is not base64: {error}", field="inputs") from error


def _decode(question: DecodeSound, decoder: LimitedProcess, seconds: float, limit: float) -> tuple[Samples, float]:
    """Return the samples and the CPU time that they have taken. Raises as `_read` does."""
    try:
        with request_failures("decodes sounds", "the sound could not be decoded"):
            answer = decoder.ask(msgspec.msgpack.encode(question), seconds=min(seconds, limit))
    except Expired as error:
        if seconds < limit:
            raise
        raise InvalidRequest("takes too long to decode", field="inputs") from error
    except Exhausted as error:
        raise InvalidRequest("takes too much memory to decode", field="inputs") from error
    decoded = msgspec.msgpack.decode(answer, type=Decoded)
    if decoded.reason:
        raise InvalidRequest(decoded.reason, field="inputs")
    return np.frombuffer(decoded.samples, np.int16).astype(np.float32) / 2**15, decoded.seconds


def _too_long(limit: int, found: float | None = None) -> InvalidRequest:
    length = "is too long" if found is None else f"is {found:.0f} s long"
    return InvalidRequest(f"{length}; at most {limit} s are possible", field="inputs")


def _samples(raw: bytes, width: int) -> Samples:
    if width not in (1, 2, 3, 4):
        raise InvalidRequest(f"has samples of {8 * width} bits; 8, 16, 24 and 32 are supported", field="inputs")
    if width == 1:
        return (np.frombuffer(raw, np.uint8).astype(np.float32) - 128) / 128
    if width == 3:
        padded = np.zeros((len(raw) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        return padded.view("<i4")[:, 0].astype(np.float32) / 2**31
    samples: Samples = np.frombuffer(raw, f"<i{width}").astype(np.float32) / 2 ** (8 * width - 1)
    return samples
