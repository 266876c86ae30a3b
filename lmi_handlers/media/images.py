"""Loads the images of one request from their URLs and checks their headers against the limits. Decodes no image."""

from __future__ import annotations

import base64
import binascii
import io
import time
from collections.abc import Sequence
from typing import Annotated

import msgspec

from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError, InvalidRequest, UnsupportedFeature
from lmi_handlers.core.event_loop import give_way
from lmi_handlers.core.request import EncodedImage, ImageSource
from lmi_handlers.media.allowed import AllowedMedia, allowed_media
from lmi_handlers.media.fetcher import fetch

IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""The formats that OpenAI accepts. Each further decoder would add attack surface."""

DEFAULT_MAX_IMAGES = 16
MAX_ASPECT_RATIO = 200
"""Above this ratio, model processors reject the image or take minutes to split it."""

FETCH_TIMEOUT = 10.0
"""Seconds to fetch all images of one request."""

_BASE64_CHUNK = 1 << 16
"""Characters decoded at a time, which takes half a millisecond. Must be a multiple of 4."""


class ImageLimits(msgspec.Struct, frozen=True):
    """Limits per request. `max_bytes` and `max_pixels` are totals over all images."""

    max_images: int
    max_bytes: int
    max_pixels: int


class ImageLoader:
    """Loads images. Thread-safe."""

    def __init__(self, limits: ImageLimits, allowed: AllowedMedia) -> None:
        self._limits = limits
        self._allowed = allowed

    def load(self, sources: Sequence[ImageSource]) -> list[EncodedImage]:
        """Return the images.

        Raises `InvalidRequest` if there are too many images, or if one cannot be loaded or is too large. The error's
        `field` names the image. Raises `UnsupportedFeature` if Pillow is not installed.
        """
        limits = self._limits
        if len(sources) > limits.max_images:
            raise InvalidRequest(
                f"the request has {len(sources)} images; at most {limits.max_images} are allowed (option.limit_mm_per_prompt)",
                field=sources[limits.max_images].field,
            )
        deadline = time.monotonic() + FETCH_TIMEOUT
        images: list[EncodedImage] = []
        max_bytes, max_pixels = limits.max_bytes, limits.max_pixels
        for source in sources:
            try:
                data = self._read(source.url, max_bytes, deadline)
                width, height = count_pixels(data)
                if width * height > max_pixels:
                    raise InvalidRequest(
                        f"has {width} x {height} pixels; at most {max_pixels} more are allowed in this request "
                        "(option.max_image_pixels)"
                    )
                if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
                    raise InvalidRequest(
                        f"has {width} x {height} pixels; one side may be at most {MAX_ASPECT_RATIO} times as long as the other"
                    )
            except InvalidRequest as error:
                raise type(error)(error.message, field=source.field, code=error.code) from error
            max_bytes -= len(data)
            max_pixels -= width * height
            images.append(EncodedImage(data, width * height, source.field))
        return images

    def _read(self, url: str, max_bytes: int, deadline: float) -> bytes:
        if url[:5].lower() == "data:":
            return decode_data_url(url, max_bytes)
        location = self._allowed.locate(url)
        return fetch(location, self._allowed.resolve(location), max_bytes=max_bytes, deadline=deadline)


def image_loader(properties: ServingProperties) -> ImageLoader:
    """Create the loader that the options describe. Raises `ConfigError` for an invalid option."""
    limits = ImageLimits(
        max_images(properties.limit_mm_per_prompt), properties.max_image_bytes, properties.max_image_pixels
    )
    return ImageLoader(limits, allowed_media(properties.allowed_media_domains, properties.allowed_media_networks))


def decode_data_url(url: str, max_bytes: int) -> bytes:
    """Return the content of a `data:..;base64,..` URL (RFC 2397). Lets other requests run after each chunk.

    Raises `InvalidRequest` if the URL is not valid or the content is longer than `max_bytes`.
    """
    head, comma, text = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise InvalidRequest("is a data: URL without ;base64,")
    if len(text) // 4 * 3 > max_bytes + 2:
        raise InvalidRequest(f"has more than {max_bytes} bytes (option.max_image_bytes)")
    pieces = []
    for start in range(0, len(text), _BASE64_CHUNK):
        try:
            piece = base64.b64decode(text[start : start + _BASE64_CHUNK], validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidRequest(f"is not base64: {error}") from error
        if len(piece) < _BASE64_CHUNK // 4 * 3 and start + _BASE64_CHUNK < len(text):
            raise InvalidRequest("is not base64: there is text after the padding")
        pieces.append(piece)
        give_way()
    return b"".join(pieces)


def count_pixels(data: bytes) -> tuple[int, int]:
    """Return the width and height from the file's header, without decoding the image.

    Raises `InvalidRequest` if the file is not a readable image, `UnsupportedFeature` if Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise UnsupportedFeature(
            f"images need Pillow on the server, which the extra `images` installs ({error})"
        ) from error
    Image.MAX_IMAGE_PIXELS = None  # Pillow's own limit only warns, and the caller enforces ours
    try:
        with Image.open(io.BytesIO(data), formats=IMAGE_FORMATS) as image:
            return image.width, image.height
    except Exception as error:  # a broken file can make a parser raise anything
        raise InvalidRequest(f"is not a readable image ({', '.join(IMAGE_FORMATS)})") from error


def max_images(option: str | None) -> int:
    """Return the maximum number of images per prompt from vLLM's JSON: `{"image": 4}` or `{"image": {"count": 4, ..}}`.

    Raises `ConfigError` if the JSON is not valid.
    """
    if option is None:
        return DEFAULT_MAX_IMAGES
    try:
        limit = msgspec.json.decode(option, type=_Limits).image
    except msgspec.DecodeError as error:
        raise ConfigError(f'option.limit_mm_per_prompt={option} is not JSON such as {{"image": 4}}') from error
    return limit.count if isinstance(limit, _Limit) else limit


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Limit(msgspec.Struct):
    count: _Count = DEFAULT_MAX_IMAGES


class _Limits(msgspec.Struct):
    image: _Count | _Limit = DEFAULT_MAX_IMAGES
