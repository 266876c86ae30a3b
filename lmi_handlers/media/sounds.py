"""Loads the files of a request's sounds from their URLs. Decodes none: engines do, within limits on their length."""

from __future__ import annotations

import time
from collections.abc import Sequence

from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.request import EncodedSound, SoundSource
from lmi_handlers.media.allowed import AllowedMedia, allowed_media
from lmi_handlers.media.files import FETCH_TIMEOUT, FileReader, max_sounds


class SoundLoader:
    """Loads at most `max_sounds` files per request, which have at most `max_bytes` together. Thread-safe."""

    def __init__(self, max_sounds: int, max_bytes: int, allowed: AllowedMedia) -> None:
        self._max_sounds = max_sounds
        self._max_bytes = max_bytes
        self._reader = FileReader(allowed, accept="audio/*", option="max_audio_bytes")

    def load(self, sources: Sequence[SoundSource]) -> list[EncodedSound]:
        """Return the files.

        Raises `InvalidRequest` if there are too many, or if one cannot be loaded or is too large. The error's `field`
        names the sound.
        """
        if len(sources) > self._max_sounds:
            raise InvalidRequest(
                f"the request has {len(sources)} sounds; at most {self._max_sounds} are allowed "
                "(option.limit_mm_per_prompt)",
                field=sources[self._max_sounds].field,
            )
        deadline = time.monotonic() + FETCH_TIMEOUT
        sounds: list[EncodedSound] = []
        left = self._max_bytes
        for source in sources:
            try:
                data = self._reader.read(source.url, left, deadline)
            except InvalidRequest as error:
                raise type(error)(error.message, field=source.field, code=error.code) from error
            left -= len(data)
            sounds.append(EncodedSound(data, source.field))
        return sounds


def sound_loader(properties: ServingProperties) -> SoundLoader:
    """Create the loader that the options describe. Raises `ConfigError` for an invalid option."""
    return SoundLoader(
        max_sounds(properties.limit_mm_per_prompt),
        properties.max_audio_bytes or properties.max_image_bytes,
        allowed_media(properties.allowed_media_domains, properties.allowed_media_networks),
    )
