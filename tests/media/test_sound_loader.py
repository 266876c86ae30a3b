"""Sounds of chats are loaded from URLs, and refused if there are too many or too large ones."""

from __future__ import annotations

import base64

import pytest
from facts import raises
from picture_server import PictureServer

from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError, InvalidRequest
from lmi_handlers.core.request import EncodedSound, SoundSource
from lmi_handlers.media.allowed import allowed_media
from lmi_handlers.media.sounds import SoundLoader, sound_loader

pytestmark = pytest.mark.usefixtures("trusted")


def source(data: bytes, field: str = "here") -> SoundSource:
    return SoundSource(f"data:audio/wav;base64,{base64.b64encode(data).decode()}", field)


def test_files_are_loaded_in_order(pictures: PictureServer) -> None:
    loader = SoundLoader(3, 1000, allowed_media(f"localhost:{pictures.server_port}", "127.0.0.0/8, ::1/128"))
    there = SoundSource(f"https://localhost:{pictures.server_port}/page", "there")
    assert loader.load([source(b"RIFF"), there]) == [
        EncodedSound(b"RIFF", "here"),
        EncodedSound(b"<html>no picture</html>", "there"),
    ]


def test_limits_apply_to_all_sounds_of_a_request_together() -> None:
    loader = sound_loader(ServingProperties(max_audio_bytes=100, limit_mm_per_prompt='{"audio": 2}'))
    assert len(loader.load([source(bytes(50)), source(bytes(50))])) == 2
    with raises(InvalidRequest, "max_audio_bytes") as caught:
        loader.load([source(bytes(50)), source(bytes(60), "second")])
    assert caught.value.field == "second"
    with raises(InvalidRequest, "limit_mm_per_prompt") as caught:
        loader.load([source(b""), source(b""), source(b"", "third")])
    assert caught.value.field == "third"


def test_limits_by_default() -> None:
    with raises(InvalidRequest, "max_audio_bytes"):
        sound_loader(ServingProperties(max_image_bytes=10)).load([source(bytes(20))])
    with raises(InvalidRequest, "limit_mm_per_prompt"):
        sound_loader(ServingProperties()).load([source(b"")] * 17)


@pytest.mark.parametrize("url", ["http://example.com/a.wav", "file:///etc/passwd", "https://example.com/a.wav", "x"])
def test_sounds_from_elsewhere_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        sound_loader(ServingProperties()).load([SoundSource(url, "here")])
    assert caught.value.field == "here"


def test_a_limit_that_is_not_valid() -> None:
    with raises(ConfigError, "limit_mm_per_prompt"):
        sound_loader(ServingProperties(limit_mm_per_prompt='{"audio": -1}'))
