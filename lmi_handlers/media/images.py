"""The images of one request: from URLs to pixels, within the operator's limits."""

from __future__ import annotations

import base64
import binascii
import io
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import msgspec

from lmi_handlers.errors import ConfigError, InvalidRequest, UnsupportedFeature
from lmi_handlers.media.allowed import AllowedMedia, allowed_media
from lmi_handlers.properties import ServingProperties
from lmi_handlers.request import ImageSource, RgbImage

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""What OpenAI takes. Fewer decoders are fewer mistakes of theirs."""

DEFAULT_MAX_IMAGES = 16
FETCH_TIMEOUT = 10.0
"""Seconds for all that one request has to fetch."""


class ImageLimits(msgspec.Struct, frozen=True):
    """For one request: so many images, of so many bytes and pixels together."""

    max_images: int
    max_bytes: int
    max_pixels: int


class ImageLoader:
    """Gets and decodes images. Thread-safe."""

    def __init__(self, limits: ImageLimits, allowed: AllowedMedia) -> None:
        self._limits = limits
        self._allowed = allowed

    def load(self, sources: Sequence[ImageSource]) -> list[RgbImage]:
        """Return the images. Raises `InvalidRequest` with the place of one that cannot be had or is too large."""
        limits = self._limits
        if len(sources) > limits.max_images:
            raise InvalidRequest(
                f"image {limits.max_images + 1} of {len(sources)}: a request may have {limits.max_images} "
                "(option.limit_mm_per_prompt)",
                field=sources[limits.max_images].field,
            )
        deadline = time.monotonic() + FETCH_TIMEOUT
        images: list[RgbImage] = []
        max_bytes, max_pixels = limits.max_bytes, limits.max_pixels
        for source in sources:
            try:
                data = self._read(source.url, max_bytes, deadline)
                image = decode_image(data, max_pixels)
            except InvalidRequest as error:
                raise type(error)(error.message, field=source.field) from error
            max_bytes -= len(data)
            max_pixels -= image.width * image.height
            images.append(image)
        return images

    def _read(self, url: str, max_bytes: int, deadline: float) -> bytes:
        if url[:5].lower() == "data:":
            return decode_data_url(url, max_bytes)
        location = self._allowed.locate(url)
        try:
            from lmi_handlers.media.fetcher import fetch
        except ImportError as error:
            raise _missing(error) from error
        return fetch(location, self._allowed.resolve(location), max_bytes=max_bytes, deadline=deadline)


def image_loader(properties: ServingProperties) -> ImageLoader:
    """Return what the options ask for. Raises `ConfigError`."""
    limits = ImageLimits(
        _max_images(properties.limit_mm_per_prompt), properties.max_image_bytes, properties.max_image_pixels
    )
    return ImageLoader(limits, allowed_media(properties.allowed_media_domains, properties.allowed_media_networks))


def decode_data_url(url: str, max_bytes: int) -> bytes:
    """Return what a `data:..;base64,..` URL (RFC 2397) holds. Raises `InvalidRequest`."""
    head, comma, text = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise InvalidRequest("is a data: URL without ;base64,")
    if len(text) // 4 * 3 > max_bytes + 2:
        raise InvalidRequest(f"has more than {max_bytes} bytes (option.max_image_bytes)")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"is not base64: {error}") from error


def decode_image(data: bytes, max_pixels: int) -> RgbImage:
    """Decode an image, upright, on white where it is transparent, and of several frames the first.

    The pixels are counted before any is decoded. Raises `InvalidRequest`, and `UnsupportedFeature` without Pillow.
    """
    pillow = _pillow()
    try:
        with pillow.Image.open(io.BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > max_pixels:
                raise InvalidRequest(
                    f"has {image.width} x {image.height} pixels; {max_pixels} are left of what a request may have "
                    "(option.max_image_pixels)"
                )
            upright = pillow.ImageOps.exif_transpose(image)
            if upright.has_transparency_data:
                upright = upright.convert("RGBA")
                white = pillow.Image.new("RGBA", upright.size, "white")
                upright = pillow.Image.alpha_composite(white, upright)
            rgb = upright.convert("RGB")
    except InvalidRequest:
        raise
    except Exception as error:  # a broken file can make a decoder raise anything
        raise InvalidRequest(f"is no image that can be read ({', '.join(FORMATS)})") from error
    return RgbImage(rgb.width, rgb.height, rgb.tobytes())


def _max_images(option: str | None) -> int:
    """Read vLLM's JSON, `{"image": 4}` or `{"image": {"count": 4, ..}}`. Raises `ConfigError`."""
    if option is None:
        return DEFAULT_MAX_IMAGES
    try:
        limits = msgspec.json.decode(option.encode(), type=dict[str, Any])
        limit = limits.get("image", DEFAULT_MAX_IMAGES)
        return int(limit["count"] if isinstance(limit, dict) else limit)
    except (KeyError, TypeError, ValueError, msgspec.DecodeError) as error:
        raise ConfigError(
            f'option.limit_mm_per_prompt has value {option!r}: not JSON such as {{"image": 4}}'
        ) from error


def _pillow() -> ModuleType:
    """Import Pillow. Its own guard against large images is a warning; ours looks first."""
    try:
        import PIL
        from PIL import Image, ImageOps  # noqa: F401  submodules
    except ImportError as error:
        raise _missing(error) from error
    Image.MAX_IMAGE_PIXELS = None
    return PIL


def _missing(error: ImportError) -> UnsupportedFeature:
    return UnsupportedFeature(f"images need more packages on this server: pip install 'lmi-handlers[images]' ({error})")
