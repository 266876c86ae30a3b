"""Decodes sounds outside the process with the model, so that a decoder that hangs or is exploited cannot harm it.

Only a few formats and codecs are used, chosen by the first bytes: FFmpeg has demuxers that open other files and URLs.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator

import av
import msgspec

from backends.limited_process import serve
from backends.sounds import Decoded, DecodeSound

MEMORY_LIMIT = 1 << 30
"""In bytes. An hour of samples has 115 MB, twice."""

RATES = range(4_000, 384_001)
"""Sampling rates. A lower one would make many samples of a small file."""

FORMATS = "WAV, FLAC, OGG, MP3, MP4, M4A and WebM"
"""Those that OpenAI accepts."""

_CODECS = {
    *("aac", "alac", "flac", "mp2", "mp3", "mp3float", "opus", "vorbis", "pcm_alaw", "pcm_mulaw", "pcm_u8"),
    *("pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_f64le"),
}


_OPTIONS = {"codec_whitelist": ",".join(sorted(_CODECS))}
"""FFmpeg decodes the beginning of each stream to learn about it, videos too, unless their codecs are kept from it."""


def opened(data: bytes, name: str) -> av.container.InputContainer:
    """Return the file, read as FFmpeg's format `name`, with no decoder at work but those of `_CODECS`."""
    return av.open(io.BytesIO(data), format=name, options=_OPTIONS)


def decode(question: DecodeSound) -> Decoded:
    """Return the samples of the file's first sound."""
    name = _format(question.data)
    if name is None:
        return Decoded(reason=f"is not a sound in a format that is supported: {FORMATS}")
    try:
        with opened(question.data, name) as container:
            if not container.streams.audio:
                return Decoded(reason="has no sound")
            stream = container.streams.audio[0]
            codec = stream.codec_context
            if codec.name not in _CODECS:
                return Decoded(reason=f"has the codec {codec.name}, which is not supported")
            if codec.sample_rate not in RATES:
                return Decoded(
                    reason=f"is sampled at {codec.sample_rate} Hz; {RATES[0]} to {RATES[-1]} Hz are supported"
                )
            codec.thread_count = 1
            samples = bytearray()
            for part in _parts(container.decode(stream), question.rate):
                samples += part
                if len(samples) > 2 * question.limit:
                    break
            return Decoded(bytes(samples))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  decoders may raise anything for a broken file
        return Decoded(reason=f"is not a readable sound ({FORMATS})")


def _parts(frames: Iterator[av.AudioFrame], rate: int) -> Iterator[bytes]:
    resampler = av.AudioResampler(format="s16", layout="mono", rate=rate)
    for frame in frames:
        if frame.sample_rate not in RATES:
            raise ValueError
        for part in resampler.resample(frame):
            yield part.to_ndarray().tobytes()
    for part in resampler.resample(None):
        yield part.to_ndarray().tobytes()


def _format(data: bytes) -> str | None:
    """Return FFmpeg's name of the file's format, or None for one that is not used."""
    if data[4:8] == b"ftyp":
        return "mov"
    if data[:4] == b"RIFF" and data[8:12] != b"WAVE":
        return None
    if data[:1] == b"\xff" and len(data) > 1 and data[1] & 0xE0 == 0xE0 and data[1] & 0x06:
        return "mp3"
    return next((name for magic, name in _MAGIC.items() if data.startswith(magic)), None)


_MAGIC = {
    b"RIFF": "wav",
    b"fLaC": "flac",
    b"OggS": "ogg",
    b"ID3": "mp3",
    b"\x1aE\xdf\xa3": "matroska",
}


def _prepare(_setup: bytes) -> Callable[[bytes], bytes]:
    decoder = msgspec.msgpack.Decoder(DecodeSound)

    def answer(question: bytes) -> bytes:
        decoded = decode(decoder.decode(question))
        return msgspec.msgpack.encode(msgspec.structs.replace(decoded, seconds=time.process_time()))  # in a fork

    return answer


if __name__ == "__main__":
    serve(_prepare, memory=MEMORY_LIMIT)
