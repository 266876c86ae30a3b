"""Decodes images outside the engine, so that a decoder that hangs, exhausts memory or is exploited cannot harm it.

Time is limited in addition to pixels, because a file does not show how long it takes. A progressive JPEG of 250 kB can
contain thousands of scans of the whole image.
"""

from __future__ import annotations

import io
from collections.abc import Callable

import msgspec
from PIL import Image

from backends.limited_process import Exhausted, Expired, LimitedProcess, request_failures, serve
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.request import EncodedImage
from lmi_handlers.media.images import IMAGE_FORMATS

MODULE = "backends.image_decoder"

MEMORY_LIMIT = 2**31
"""In bytes. At the highest allowed `option.max_image_pixels`, decoding takes about 24 bytes per pixel."""

SECONDS = 2.0
SECONDS_PER_PIXEL = 2e-7
"""CPU time limit: `SECONDS` plus this per pixel. The slowest legitimate file takes a third of it."""

_ORIENTATION = 0x0112
_DEPTH_16 = "I;16"


class Rgb(msgspec.Struct, frozen=True, array_like=True):
    """`data` has `height` rows from top to bottom. Each row has `width` pixels of three bytes: red, green and blue."""

    width: int
    height: int
    data: bytes


def decode_image(image: EncodedImage, process: LimitedProcess, seconds: float) -> Image.Image:
    """Return the image in RGB, decoded in at most `seconds` of CPU time.

    Raises `InvalidRequest` with the image's field, `RequestFailed` if the decoder process fails, and `Expired` if
    `seconds` was too short but the image's own limit allows more.
    """
    limit = SECONDS + SECONDS_PER_PIXEL * image.pixels
    try:
        with request_failures("decodes images", "the image could not be decoded"):
            answer = process.ask(image.data, seconds=min(seconds, limit))
    except Expired as error:
        if seconds < limit:
            raise
        raise InvalidRequest("takes too long to decode", field=image.field) from error
    except Exhausted as error:
        raise InvalidRequest("takes too much memory to decode", field=image.field) from error
    rgb = msgspec.msgpack.decode(answer, type=Rgb | None)
    if rgb is None:
        raise InvalidRequest(f"is not a readable image ({', '.join(IMAGE_FORMATS)})", field=image.field)
    return Image.frombytes("RGB", (rgb.width, rgb.height), rgb.data)


def decode(data: bytes) -> Rgb | None:
    """Decode a file, or return None if it is invalid.

    The image is turned upright, transparency becomes white, and only the first frame is used.
    """
    try:
        with Image.open(io.BytesIO(data), formats=IMAGE_FORMATS) as image:
            image.load()
            rgb = _on_white(_upright(_eight_bits(image)))
            return Rgb(rgb.width, rgb.height, rgb.tobytes())
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  decoders may raise anything for a broken file
        return None


def _eight_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit images to 8 bits. Pillow would clip the values at 255."""
    return image.point(lambda value: value / 256).convert("L") if image.mode.startswith(_DEPTH_16) else image


def _upright(image: Image.Image) -> Image.Image:
    """Rotate as the EXIF orientation says. Other tags may be invalid and are ignored."""
    orientation = image.getexif().get(_ORIENTATION)
    turn = _TURNS.get(orientation) if isinstance(orientation, int) else None
    return image if turn is None else image.transpose(turn)


def _on_white(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image)
    return white


_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _prepare(_setup: bytes) -> Callable[[bytes], bytes]:
    Image.init()
    Image.MAX_IMAGE_PIXELS = None  # the pixels are checked before
    return lambda question: msgspec.msgpack.encode(decode(question))


if __name__ == "__main__":
    serve(_prepare, memory=MEMORY_LIMIT)
