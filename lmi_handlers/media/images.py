"""Loads the images of one request from their URLs and checks their headers against the limits. Decodes no image."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence

import msgspec

from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import InvalidRequest, UnsupportedFeature
from lmi_handlers.core.request import EncodedImage, ImageSource
from lmi_handlers.media.allowed import AllowedMedia, allowed_media
from lmi_handlers.media.files import FETCH_TIMEOUT, FileReader, max_images

IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""The formats that OpenAI accepts. Each further decoder would add attack surface."""

MAX_ASPECT_RATIO = 200
"""Above this ratio, model processors reject the image or take minutes to split it."""


class ImageLimits(msgspec.Struct, frozen=True):
    """Limits per request. `max_bytes` and `max_pixels` are totals over all images."""

    max_images: int
    max_bytes: int
    max_pixels: int


class ImageLoader:
    """Loads images. Thread-safe."""

    def __init__(self, limits: ImageLimits, allowed: AllowedMedia) -> None:
        self._limits = limits
        self._reader = FileReader(allowed, accept="image/*", option="max_image_bytes")

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
                data = self._reader.read(source.url, max_bytes, deadline)
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


def image_loader(properties: ServingProperties) -> ImageLoader:
    """Create the loader that the options describe. Raises `ConfigError` for an invalid option."""
    limits = ImageLimits(
        max_images(properties.limit_mm_per_prompt), properties.max_image_bytes, properties.max_image_pixels
    )
    return ImageLoader(limits, allowed_media(properties.allowed_media_domains, properties.allowed_media_networks))


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
