"""Sounds: which files are read, and that hostile ones harm nobody."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import PIL.Image
import pytest
from facts import raises, says
from task_handlers import encoded, wav

from backends import sounds
from backends.limited_process import Expired, LimitedProcess
from backends.media_preparer import DecodedMedia, MediaPreparer
from backends.sounds import DECODER, PromptSounds, SoundReader, read_wav
from lmi_handlers.core.errors import (
    ClientDisconnected,
    InvalidRequest,
    PayloadTooLarge,
    RequestFailed,
    UnsupportedFeature,
)
from lmi_handlers.core.request import EncodedImage, EncodedPrompt, EncodedSound, MediaPrompt, TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams

RATE = 16_000
FORMATS = [
    ("flac", "flac", 44_100),
    ("ogg", "libopus", 48_000),
    ("mp3", "libmp3lame", 44_100),
    ("mp4", "aac", 44_100),
    ("ipod", "aac", 22_050),
    ("webm", "libopus", 48_000),
    ("wav", "pcm_f32le", 8_000),
]
PLAYLIST = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n"


@pytest.fixture(scope="module")
def reader() -> Iterator[SoundReader]:
    reader = SoundReader(RATE, 3)
    yield reader
    reader.close()


@pytest.fixture(scope="module")
def decoder() -> Iterator[LimitedProcess]:
    process = LimitedProcess(DECODER)
    yield process
    process.close()


def tone(rate: int, seconds: float = 1.0) -> np.ndarray[Any, Any]:
    return np.sin(2 * np.pi * 440 * np.arange(int(rate * seconds)) / rate) / 3


def file_of(container: str, codec: str, rate: int) -> bytes:
    """A second of a tone, in stereo."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=rate)
        stream.layout = "stereo"
        samples = np.repeat((tone(rate) * 32767).astype(np.int16), 2).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="stereo")
        frame.sample_rate = rate
        context = stream.codec_context
        resampler = av.AudioResampler(context.format, context.layout, rate, context.frame_size or 0)
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            output.mux(stream.encode(part))
        output.mux(stream.encode(None))
    return file.getvalue()


def test_base64_and_bytes_are_read_alike(reader: SoundReader) -> None:
    file = wav((tone(RATE) * 32767).astype("<i2").tobytes())
    found = reader.read([file, encoded(file)])
    np.testing.assert_allclose(found[0], tone(RATE), atol=1e-4)
    np.testing.assert_array_equal(found[0], found[1])


def test_sounds_of_a_request_have_one_limit(monkeypatch: pytest.MonkeyPatch, reader: SoundReader) -> None:
    monkeypatch.setattr(sounds, "MAX_SECONDS", 5)
    file = wav(bytes(2 * RATE * 2))
    assert len(reader.read([file] * 2)) == 2
    with pytest.raises(InvalidRequest) as caught:
        reader.read([file] * 3)
    assert says(caught.value, "inputs: 2 s long at most 1 s")


def test_sounds_of_a_prompt_have_one_limit(decoder: LimitedProcess) -> None:
    """Of three seconds. Errors name the sound."""
    second = wav(bytes(2 * RATE))
    files = [EncodedSound(second, f"sound {number}") for number in range(4)]
    reader = PromptSounds(RATE, 3)
    assert [len(samples) for samples in reader.read(files[:3], decoder, math.inf)] == [RATE] * 3
    with pytest.raises(InvalidRequest) as caught:
        reader.read(files, decoder, math.inf)
    assert caught.value.field == "sound 3"
    with pytest.raises(InvalidRequest) as caught:
        reader.read([files[0], EncodedSound(b"no sound", "other")], decoder, math.inf)
    assert caught.value.field == "other"


def test_sounds_of_a_prompt_have_one_limit_of_time(monkeypatch: pytest.MonkeyPatch, decoder: LimitedProcess) -> None:
    """Each of these alone is decoded in it, and they have few samples. A shorter turn says nothing about them."""
    slow = EncodedSound(many_chunks(200_000), "slow")
    reader = PromptSounds(RATE, 3)
    monkeypatch.setattr(sounds, "_SECONDS_PER_SECOND", 0.0)
    _, used = sounds._decode(sounds.DecodeSound(slow.data, RATE, RATE), decoder, math.inf, 60.0)
    assert used > 0
    monkeypatch.setattr(sounds, "_SECONDS", 4 * used)
    assert len(reader.read([slow], decoder, math.inf)) == 1
    with raises(InvalidRequest, "slow: too long decode"):
        reader.read([slow] * 16, decoder, math.inf)
    with pytest.raises(Expired):
        reader.read([slow] * 16, decoder, 2 * used)


@pytest.fixture
def preparer() -> Iterator[MediaPreparer[DecodedMedia]]:
    started = MediaPreparer(lambda _request, media: media, PromptSounds(RATE))
    yield started
    started.close()


def prompt(images: list[EncodedImage], files: list[bytes]) -> TokenRequest:
    media = MediaPrompt("", images, [EncodedSound(file, f"sound {number}") for number, file in enumerate(files)])
    encoded_prompt = EncodedPrompt([1], media_prompt=media)
    return TokenRequest(request_id="r", prompt=encoded_prompt, sampling_params=SamplingParams())


def picture() -> EncodedImage:
    file = io.BytesIO()
    PIL.Image.new("RGB", (4, 3)).save(file, "PNG")
    return EncodedImage(file.getvalue(), 12, "image")


def test_media_of_others_do_not_wait_for_a_hostile_sound(preparer: MediaPreparer[DecodedMedia]) -> None:
    """It may take 77 s of CPU time, and would take more."""
    hostile = preparer.submit(prompt([], [many_chunks(2_600_000)] * 64))
    image = preparer.submit(prompt([picture()], []))
    both = preparer.submit(prompt([picture()], [wav(bytes(800), rate=8_000)]))
    assert hostile is not None
    assert image is not None
    assert both is not None
    assert [each.size for each in image.result(300).images] == [(4, 3)]
    assert not hostile.done()
    found = both.result(300)
    assert ([each.size for each in found.images], len(found.sounds)) == ([(4, 3)], 1)
    assert not hostile.done()


def test_a_sound_that_is_refused_fails_its_prompt_only(preparer: MediaPreparer[DecodedMedia]) -> None:
    refused = preparer.submit(prompt([picture()], [b"no sound"]))
    whole = preparer.submit(prompt([], [wav(bytes(200))]))
    assert refused is not None
    assert whole is not None
    with raises(InvalidRequest, "sound 0: not format"):
        refused.result(300)
    assert len(whole.result(300).sounds[0]) == 100


def test_wav_files_of_many_chunks_are_left_to_the_decoder(reader: SoundReader) -> None:
    """`wave` would take seconds of the engine's own process for them."""
    with raises(UnsupportedFeature, "64"):
        read_wav(many_chunks(64), RATE, RATE)
    assert len(read_wav(many_chunks(62), RATE, RATE)) == 100
    np.testing.assert_array_equal(reader.read([many_chunks(1000)])[0], np.zeros(100))


def many_chunks(number: int) -> bytes:
    """A WAV file of 100 samples after so many chunks that mean nothing."""
    file = wav(bytes(200))
    size = (len(file) + 8 * number - 8).to_bytes(4, "little")
    return file[:4] + size + file[8:36] + b"junk\0\0\0\0" * number + file[36:]


def test_a_reader_that_was_stopped_decodes_nothing() -> None:
    reader = SoundReader(RATE)
    try:
        reader.stop()
        with pytest.raises(RequestFailed):
            reader.read([wav(bytes(8_000), rate=8_000)])
    finally:
        reader.close()


def test_no_file_is_read_once_nobody_waits(reader: SoundReader) -> None:
    asked = iter([False, True])
    with pytest.raises(ClientDisconnected):
        reader.read([wav(bytes(200)), b"nonsense"], lambda: next(asked))


def test_bytes_of_a_file(monkeypatch: pytest.MonkeyPatch, reader: SoundReader) -> None:
    monkeypatch.setattr(sounds, "MAX_BYTES", 100)
    with pytest.raises(PayloadTooLarge) as caught:
        reader.read([bytes(101)])
    assert says(caught.value, "inputs: 101 bytes 100")


@pytest.mark.parametrize("file", [wav(bytes(200), rate=8000), b"OggS" + bytes(40)])
def test_without_a_decoder_the_extra_is_named(file: bytes) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        read_wav(file, RATE, RATE)
    assert says(caught.value, "inputs: WAV PyAV audio" if file[:4] == b"OggS" else "inputs: 8000 16000 PyAV audio")


@pytest.mark.parametrize(("container", "codec", "rate"), FORMATS)
def test_formats(reader: SoundReader, container: str, codec: str, rate: int) -> None:
    (samples,) = reader.read([file_of(container, codec, rate)])
    assert len(samples) == pytest.approx(RATE, rel=0.1)
    middle = samples[RATE // 4 : 3 * RATE // 4]
    assert np.abs(np.fft.rfft(middle)).argmax() == 220  # of half a second
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(1 / 3 / np.sqrt(2), rel=0.1)


@pytest.mark.parametrize(
    ("file", "facts"),
    [
        (b"", "inputs: not format WAV WebM"),
        (PLAYLIST, "inputs: not format WAV WebM"),
        (b"ID3" + PLAYLIST, "inputs: not readable"),
        (wav(bytes(200), rate=1), "inputs: 1 Hz 4000"),
        (wav(bytes(200), rate=2_000_000), "inputs: 2000000 Hz 384000"),
        (wav(bytes(8000 * 2 * 4), rate=8000), "inputs: too long 3 s"),
    ],
)
def test_files_that_are_refused(reader: SoundReader, file: bytes, facts: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        reader.read([file])
    assert says(caught.value, facts)


def test_damaged_files_are_read_or_refused(reader: SoundReader) -> None:
    """The decoder may return what is left, or refuse it, but nothing else."""
    draw = random.Random(5)
    refused = 0
    for container, codec, rate in FORMATS:
        file = file_of(container, codec, rate)
        for _ in range(6):
            damaged = bytearray(file[: draw.choice([len(file), draw.randrange(len(file))])])
            for _ in range(draw.randrange(1, 30)):
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
            try:
                (samples,) = reader.read([bytes(damaged)])
            except InvalidRequest:
                refused += 1
            else:
                assert 0 < len(samples) <= 3 * RATE
    assert refused


def test_no_decoder_of_videos_reads_a_file() -> None:
    import av

    from backends.sound_decoder import opened

    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as output:
        video = output.add_stream("mjpeg", rate=5)
        video.width = video.height = 32
        video.pix_fmt = "yuvj420p"
        sound = output.add_stream("pcm_s16le", rate=RATE)
        sound.layout = "mono"
        picture = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
        output.mux([*video.encode(picture), *video.encode(None)])
        samples = av.AudioFrame.from_ndarray(np.ones((1, RATE), np.int16), format="s16", layout="mono")
        samples.sample_rate = RATE
        output.mux([*sound.encode(samples), *sound.encode(None)])
    with opened(file.getvalue(), "matroska") as container:
        assert container.streams.video[0].codec_context.pix_fmt is None  # only a decoder knows it
        assert sum(frame.samples for frame in container.decode(container.streams.audio[0])) == RATE
