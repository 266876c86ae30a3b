"""Images are decoded in a process with limits, and prepared for a model without blocking others."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st
from picture_server import RED, bomb, picture

from backends.image_decoder import MODULE, Rgb, decode, decode_image
from backends.limited_process import Expired, LimitedProcess
from backends.media_preparer import MediaPreparer
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.request import EncodedImage, EncodedPrompt, MediaPrompt, TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.media.images import (
    count_pixels,
)


@pytest.mark.parametrize("form", ["PNG", "WEBP", "GIF", "JPEG"])
def test_accepted_formats_are_decoded(form: str) -> None:
    data = picture(form=form, lossless=True)
    assert count_pixels(data) == (4, 3)
    image = decoded(data)
    assert (image.width, image.height, len(image.data)) == (4, 3, 36)
    assert all(abs(have - want) < 4 for have, want in zip(image.data[:3], RED, strict=True))


def decoded(data: bytes) -> Rgb:
    image = decode(data)
    assert image is not None
    return image


def saved(image: PIL.Image.Image, form: str = "PNG", **options: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, form, **options)
    return data.getvalue()


def test_other_formats_are_rejected() -> None:
    for form in ("BMP", "TIFF", "ICO", "PPM"):
        data = picture((16, 16), form)
        assert decode(data) is None
        with pytest.raises(InvalidRequest, match="not a readable image"):
            count_pixels(data)


def test_transparent_pixels_become_white() -> None:
    assert decoded(saved(PIL.Image.new("RGBA", (1, 1), (0, 0, 0, 0)))).data == b"\xff\xff\xff"
    keyed = PIL.Image.new("RGB", (1, 1), (1, 2, 3))
    assert decoded(saved(keyed, transparency=(1, 2, 3))).data == b"\xff\xff\xff"


def test_sixteen_bits_per_pixel_are_supported() -> None:
    grey = PIL.Image.new("I;16", (1, 1), 0x8000)
    assert decoded(saved(grey)).data == b"\x80\x80\x80"


def test_the_orientation_in_exif_is_applied() -> None:
    # The tags are an image width that is not a number, and an orientation of 90 degrees.
    tags = struct.pack("<HHI4s", 0x0100, 2, 4, b"abc") + struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0)
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + tags + bytes(4)
    assert decoded(picture((4, 3), "JPEG", exif=exif)).width == 3


def test_only_the_first_frame_of_an_animation_is_used() -> None:
    frames = [PIL.Image.new("RGB", (2, 2), colour) for colour in ("red", "blue")]
    data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decoded(data).data[:3] == b"\xff\0\0"


def test_an_image_with_a_huge_compressed_text_is_rejected() -> None:
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_text("comment", "x" * 100_000_000, zip=True)
    data = picture(pnginfo=info)
    assert len(data) < 200_000
    assert decode(data) is None


def progressive(side: int, scans: int) -> bytes:
    """Return a grey JPEG that repeats its last scan, at 48 bytes each."""
    data = saved(PIL.Image.new("L", (side, side), 128), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * scans + data[-2:]


@pytest.fixture(scope="module")
def decoder() -> Iterator[LimitedProcess]:
    started = LimitedProcess(MODULE)
    yield started
    started.close()


def encoded(data: bytes) -> EncodedImage:
    width, height = count_pixels(data)
    return EncodedImage(data, width * height, "here")


def test_the_decoder_process_returns_the_image(decoder: LimitedProcess) -> None:
    image = decode_image(encoded(picture()), decoder, math.inf)
    assert (image.mode, image.size, image.getpixel((0, 0))) == ("RGB", (4, 3), RED)


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        pytest.param(lambda: progressive(2000, 60_000), "takes too long", id="scans"),
        pytest.param(lambda: bomb(30_000, 30_000), "takes too much memory|not a readable image", id="pixels"),
        pytest.param(lambda: picture((100, 100))[:-40], "not a readable image", id="cut"),
    ],
)
def test_images_that_exceed_the_decoders_limits_are_rejected(
    decoder: LimitedProcess, data: Callable[[], bytes], cause: str
) -> None:
    image = encoded(data())
    with pytest.raises(InvalidRequest, match=cause) as caught:
        decode_image(EncodedImage(image.data, min(image.pixels, 1 << 26), image.field), decoder, math.inf)
    assert caught.value.field == "here"
    assert decode_image(encoded(picture()), decoder, math.inf).size == (4, 3)


def test_an_image_that_needs_more_time_than_it_gets_is_not_rejected(decoder: LimitedProcess) -> None:
    """It may get more time later."""
    with pytest.raises(Expired):
        decode_image(encoded(progressive(1000, 2000)), decoder, 0.05)


def test_the_largest_allowed_image_is_decoded(decoder: LimitedProcess) -> None:
    data = saved(PIL.Image.new("RGBA", (8192, 8192), (1, 2, 3, 128)), compress_level=1)
    assert decode_image(encoded(data), decoder, math.inf).size == (8192, 8192)


def with_images(*images: EncodedImage) -> TokenRequest:
    prompt = MediaPrompt("", list(images))
    return TokenRequest(
        request_id="r", prompt=EncodedPrompt([1], media_prompt=prompt), sampling_params=SamplingParams()
    )


@pytest.fixture
def preparer() -> Iterator[MediaPreparer[list[tuple[int, int]]]]:
    started = MediaPreparer(lambda _request, media: [image.size for image in media.images])
    yield started
    started.close()


def test_prompts_with_small_images_overtake_those_with_large_ones(
    preparer: MediaPreparer[list[tuple[int, int]]],
) -> None:
    """In order of arrival, the last prompt would wait until all the others have used up their time."""
    scans = encoded(progressive(2000, 60_000))
    heavy = [preparer.submit(with_images(scans)) for _ in range(4)]
    light = preparer.submit(with_images(encoded(picture()), encoded(picture((5, 6)))))
    assert light is not None
    assert light.result(timeout=120) == [(4, 3), (5, 6)]
    assert not any(future is None or future.done() for future in heavy)


def test_sequences_of_a_request_share_their_images(preparer: MediaPreparer[list[tuple[int, int]]]) -> None:
    """Images are prepared once. If one sequence is cancelled, the others still get them."""
    request = with_images(encoded(picture()))
    first, second, third = (preparer.submit(request) for _ in range(3))
    assert first is not None
    assert second is not None
    assert third is not None
    first.cancel()
    assert second.result(timeout=120) is third.result(timeout=120)
    other = preparer.submit(with_images(encoded(picture((100, 100))[:-40])))
    assert other is not None
    assert isinstance(other.exception(timeout=120), InvalidRequest)
    assert preparer.submit(msgspec.structs.replace(request, prompt=EncodedPrompt([1]))) is None


@given(st.binary(max_size=200), st.integers(0, 60))
def test_broken_files_are_rejected(noise: bytes, kept: int) -> None:
    for data in (noise, picture()[:kept] + noise):
        try:
            width, height = count_pixels(data)
        except InvalidRequest:
            continue
        if width * height < 10_000:
            decode(data)  # raises nothing
