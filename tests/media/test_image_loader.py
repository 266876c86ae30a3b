"""Images are loaded from URLs, and rejected by their headers if they exceed the limits."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from picture_server import PictureServer, bomb, picture

from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError, InvalidRequest
from lmi_handlers.core.request import ImageSource
from lmi_handlers.media.allowed import AllowedMedia, allowed_media
from lmi_handlers.media.files import DEFAULT_MAX_FILES, decode_data_url
from lmi_handlers.media.images import ImageLimits, ImageLoader, image_loader

pytestmark = pytest.mark.usefixtures("trusted")

LIMITS = ImageLimits(max_images=3, max_bytes=100_000, max_pixels=10_000)


def data_url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def loader(server: PictureServer) -> ImageLoader:
    return ImageLoader(LIMITS, allowed_media(f"localhost:{server.server_port}", "127.0.0.0/8, ::1/128"))


def test_an_image_is_fetched(pictures: PictureServer) -> None:
    (image,) = loader(pictures).load([ImageSource(f"https://localhost:{pictures.server_port}/red.png?a=1", "image")])
    assert (image.data, image.pixels, image.field) == (picture(), 12, "image")
    assert pictures.hosts[-1] == f"localhost:{pictures.server_port}"


def test_a_web_page_is_not_an_image(pictures: PictureServer) -> None:
    with pytest.raises(InvalidRequest, match="not a readable image") as caught:
        loader(pictures).load([ImageSource(f"https://localhost:{pictures.server_port}/page", "messages[0].content[1]")])
    assert caught.value.field == "messages[0].content[1]"


def test_no_host_is_allowed_by_default() -> None:
    with pytest.raises(InvalidRequest, match="allowed_media_domains"):
        image_loader(ServingProperties()).load([ImageSource("https://images.example.com/a.png", "image")])


@pytest.mark.parametrize(
    "domains", ["https://images.example.com", "images.example.com/a", "*", "a b", "user@host", "[::1]"]
)
def test_an_invalid_host_in_the_option_is_rejected_at_startup(domains: str) -> None:
    with pytest.raises(ConfigError, match="allowed_media_domains"):
        image_loader(ServingProperties(allowed_media_domains=domains))


def test_an_invalid_network_in_the_option_is_rejected_at_startup() -> None:
    with pytest.raises(ConfigError, match="allowed_media_networks"):
        image_loader(ServingProperties(allowed_media_networks="10.0.0.0/33"))


def test_a_decompression_bomb_is_rejected_before_it_is_decoded() -> None:
    data = bomb(30_000, 30_000)
    assert len(data) < 200_000
    with pytest.raises(InvalidRequest, match="30000 x 30000 pixels"):
        image_loader(ServingProperties()).load([ImageSource(data_url(data), "image")])


def test_a_very_narrow_image_is_rejected() -> None:
    """The processors of some models would split it into 100,000 parts."""
    with pytest.raises(InvalidRequest, match="at most 200 times"):
        image_loader(ServingProperties()).load([ImageSource(data_url(bomb(201, 1)), "image")])
    assert image_loader(ServingProperties()).load([ImageSource(data_url(bomb(200, 1)), "image")])


@pytest.mark.parametrize("url", ["data:,", "data:image/png,abc", "data:image/png;base64,***", "data:image/png;base64"])
def test_invalid_data_urls_are_rejected(url: str) -> None:
    with pytest.raises(InvalidRequest):
        decode_data_url(url, 1000, "max_image_bytes")


@pytest.mark.parametrize("size", [49_151, 49_152, 49_153, 200_000])
def test_a_long_data_url_is_decoded_in_pieces(size: int) -> None:
    data = bytes(range(256)) * 1000
    assert decode_data_url(data_url(data[:size]), size, "max_image_bytes") == data[:size]


@pytest.mark.parametrize("end", ["A" * 65_534 + "==", "A" * 65_535 + "="])
def test_base64_must_end_after_the_padding(end: str) -> None:
    with pytest.raises(InvalidRequest, match="is not base64"):
        decode_data_url(f"data:image/png;base64,{end}AAAA", 100_000, "max_image_bytes")


@given(st.binary(max_size=100))
def test_data_urls_are_decoded_up_to_a_maximum_size(data: bytes) -> None:
    assert decode_data_url(data_url(data), 100, "max_image_bytes") == data
    with pytest.raises(InvalidRequest, match="more than"):
        decode_data_url(data_url(data + bytes(6)), len(data), "max_image_bytes")


def test_limits_apply_to_all_images_of_a_request_together() -> None:
    loading = ImageLoader(LIMITS, AllowedMedia())
    large = ImageSource(data_url(picture((70, 70))), "large")
    assert len(loading.load([large, large])) == 2
    with pytest.raises(InvalidRequest, match="max_image_pixels") as caught:
        loading.load([large, large, large])
    assert caught.value.field == "large"
    small = [ImageSource(data_url(picture()), str(number)) for number in range(4)]
    with pytest.raises(InvalidRequest, match="limit_mm_per_prompt") as caught:
        loading.load(small)
    assert caught.value.field == "3"


@pytest.mark.parametrize(
    ("option", "limit"), [(None, DEFAULT_MAX_FILES), ('{"image": 2}', 2), ('{"image": {"count": 3}, "video": 1}', 3)]
)
def test_the_maximum_number_of_images(option: str | None, limit: int) -> None:
    loading = image_loader(ServingProperties(limit_mm_per_prompt=option))
    sources = [ImageSource(data_url(picture()), "image")] * limit
    assert len(loading.load(sources)) == limit
    with pytest.raises(InvalidRequest):
        loading.load([*sources, sources[0]])


@pytest.mark.parametrize(
    "option",
    ["4", "image=4", '{"image": "many"}', '{"image": null}', '{"image": -1}', '{"image": 2.5}', '{"image": true}'],
)
def test_an_invalid_limit_is_rejected_at_startup(option: str) -> None:
    with pytest.raises(ConfigError, match="limit_mm_per_prompt"):
        image_loader(ServingProperties(limit_mm_per_prompt=option))
