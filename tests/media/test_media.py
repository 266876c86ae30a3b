"""Images from elsewhere: what may be fetched, from where, and what decoding them may cost."""

from __future__ import annotations

import base64
import io
import ipaddress
import math
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import PIL.Image
import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st
from picture_server import RED, PictureServer, picture

from backends.image_decoder import MODULE, Rgb, decode, decode_image
from backends.image_preparer import ImagePreparer
from backends.limited_process import Expired, LimitedProcess
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError, InvalidRequest
from lmi_handlers.core.request import EncodedImage, ImagePrompt, ImageSource, TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.media.allowed import AllowedMedia, Location, allowed_media, embedded, is_public
from lmi_handlers.media.fetcher import fetch
from lmi_handlers.media.images import (
    DEFAULT_MAX_IMAGES,
    ImageLimits,
    ImageLoader,
    count_pixels,
    decode_data_url,
    image_loader,
)

LIMITS = ImageLimits(max_images=3, max_bytes=100_000, max_pixels=10_000)


def data_url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


# Addresses

NOT_PUBLIC = [
    "0.0.0.0",
    "10.1.2.3",
    "100.64.0.1",
    "127.0.0.1",
    "169.254.169.254",
    "172.16.0.1",
    "192.168.1.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:169.254.169.254",
    "::169.254.169.254",
    "64:ff9b::169.254.169.254",
    "64:ff9b:1::1",
    "2002:a9fe:a9fe::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_private_addresses_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"])
def test_public_addresses(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@given(st.ip_addresses(v=4))
def test_an_address_is_as_public_in_every_spelling(address: ipaddress.IPv4Address) -> None:
    for form in (
        f"::ffff:{address}",
        f"64:ff9b::{address}",
        str(ipaddress.IPv6Address((0x2002 << 112) | int(address) << 80)),
    ):
        spelled = ipaddress.ip_address(form)
        assert embedded(spelled) == address
        assert is_public(spelled) == is_public(address)


# URLs

ALLOWED = allowed_media("images.example.com, OTHER.example.org:8443", None)


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("https://images.example.com/a.png", Location("images.example.com", 443, "/a.png")),
        ("HTTPS://Images.Example.com", Location("images.example.com", 443, "/")),
        ("https://images.example.com:443?q=%20a&b=~(1)", Location("images.example.com", 443, "/?q=%20a&b=~(1)")),
        ("https://other.example.org:8443/x;y=1,2#part", Location("other.example.org", 8443, "/x;y=1,2")),
    ],
)
def test_urls_of_allowed_hosts(url: str, location: Location) -> None:
    assert ALLOWED.locate(url) == location


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://images.example.com/a.png",
        "file:///etc/passwd",
        "ftp://images.example.com/a",
        "gopher://images.example.com",
        "//images.example.com/a",
        "https://169.254.169.254/latest/meta-data",
        "https://[::ffff:169.254.169.254]/",
        "https://[fd00:ec2::254]/",
        "https://localhost/",
        "https://2852039166/",
        "https://0xa9fea9fe/",
        "https://0251.0376.0251.0376/",
        "https://127.1/",
        "https://images.example.com@169.254.169.254/",
        "https://user:password@images.example.com/",
        "https://169.254.169.254\\@images.example.com/",
        "https://images.example.com\\@169.254.169.254/",
        "https://169.254.169.254#@images.example.com/",
        "https://169.254.169.254?images.example.com/",
        "https://images.example.com.evil.test/",
        "https://evilimages.example.com/",
        "https://sub.images.example.com/",
        "https://images.example.com./",
        "https://images.example.com:80/",
        "https://images.example.com:99999/",
        "https://images.example.com:443:80/",
        "https://images.example.com:/",
        "https://other.example.org/",
        "https://images.example.com/ HTTP/1.1\r\nX: y",
        "https://images.example.com/a\nb",
        " https://images.example.com/",
        "https://images.example.com\t/",
        "https://images。example。com/",
        "https://\u0131mages.example.com/",
        "https://images.example.com/\x00",
        "https://images.example.com/ä",
        "https://images.example.com:\uff14\uff14\uff13/",
        "http\u017f://images.example.com/",
        "javascript:alert(1)",
    ],
)
def test_urls_that_lead_elsewhere(url: str) -> None:
    with pytest.raises(InvalidRequest):
        ALLOWED.locate(url)


@given(st.text(alphabet=st.sampled_from("htps:/@\\#?.[]%0aimages.example.com\t\n evil:443"), max_size=60))
def test_only_an_allowed_host_is_ever_located(rest: str) -> None:
    try:
        location = ALLOWED.locate(f"https://{rest}")
    except InvalidRequest:
        return
    assert (location.host, location.port) in ALLOWED.hosts
    assert location.target.startswith("/")
    assert location.target.isascii()
    assert not any(character.isspace() for character in location.target)


def test_nothing_is_allowed_by_default() -> None:
    with pytest.raises(InvalidRequest, match="allowed_media_domains"):
        image_loader(ServingProperties()).load([ImageSource("https://images.example.com/a.png", "image")])


@pytest.mark.parametrize(
    "domains", ["https://images.example.com", "images.example.com/a", "*", "a b", "user@host", "[::1]"]
)
def test_what_is_no_host_is_refused_at_start(domains: str) -> None:
    with pytest.raises(ConfigError, match="allowed_media_domains"):
        image_loader(ServingProperties(allowed_media_domains=domains))


def test_what_is_no_network_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match="allowed_media_networks"):
        image_loader(ServingProperties(allowed_media_networks="10.0.0.0/33"))


def test_a_name_of_a_private_address_is_refused_without_telling_it() -> None:
    with pytest.raises(InvalidRequest, match="neither on the public Internet") as caught:
        allowed_media("localhost", None).resolve(Location("localhost", 443, "/"))
    assert "127.0.0.1" not in str(caught.value)
    assert "::1" not in str(caught.value)


def test_a_network_may_be_opened() -> None:
    location = Location("localhost", 443, "/")
    assert allowed_media("localhost", "127.0.0.0/8, ::1/128").resolve(location)
    with pytest.raises(InvalidRequest):
        allowed_media("localhost", "10.0.0.0/8").resolve(location)


# Fetching


@pytest.fixture(autouse=True)
def trusted(pictures: PictureServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(pictures.authority))


def loader(server: PictureServer) -> ImageLoader:
    return ImageLoader(LIMITS, allowed_media(f"localhost:{server.server_port}", "127.0.0.0/8, ::1/128"))


def test_an_image_is_fetched(pictures: PictureServer) -> None:
    (image,) = loader(pictures).load([ImageSource(f"https://localhost:{pictures.server_port}/red.png?a=1", "image")])
    assert (image.data, image.pixels, image.field) == (picture(), 12, "image")
    assert pictures.hosts[-1] == f"localhost:{pictures.server_port}"


def get(
    server: PictureServer, path: str, *, host: str = "localhost", seconds: float = 30, max_bytes: int = 1000
) -> bytes:
    location = Location(host, server.server_port, path)
    return fetch(location, ["127.0.0.1"], max_bytes=max_bytes, deadline=time.monotonic() + seconds)


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("/redirect", "redirects are not followed"),
        ("/missing", "returned status 404"),
        ("/endless", "more than 1000 bytes"),
        ("/cut", "cannot be fetched"),
    ],
)
def test_what_is_not_fetched(pictures: PictureServer, path: str, cause: str) -> None:
    with pytest.raises(InvalidRequest, match=cause):
        get(pictures, path)


def test_the_name_is_not_asked_for_twice(pictures: PictureServer) -> None:
    """Nobody resolves this one; what was checked is connected to, under the name and with its certificate."""
    assert get(pictures, "/red.png", host="pictures.example") == picture()
    assert pictures.hosts[-1] == f"pictures.example:{pictures.server_port}"


def test_a_certificate_of_another_name_is_refused(pictures: PictureServer) -> None:
    with pytest.raises(InvalidRequest, match="cannot be fetched: SSLCertVerificationError"):
        get(pictures, "/red.png", host="other.example")


@pytest.mark.parametrize("path", ["/slow", "/slow-head", "/slow-chunks"])
def test_a_slow_host_does_not_hold_a_request(pictures: PictureServer, path: str) -> None:
    with pytest.raises(InvalidRequest, match="too long"):
        get(pictures, path, seconds=0.5)


def test_a_host_that_never_shakes_hands() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        location = Location("localhost", silent.getsockname()[1], "/")
        with pytest.raises(InvalidRequest, match="too long"):
            fetch(location, ["127.0.0.1"], max_bytes=10, deadline=time.monotonic() + 0.5)


def test_the_next_address_is_tried(pictures: PictureServer) -> None:
    location = Location("localhost", pictures.server_port, "/red.png")
    deadline = time.monotonic() + 30
    assert fetch(location, ["127.0.0.2", "127.0.0.1"], max_bytes=1000, deadline=deadline) == picture()
    with pytest.raises(InvalidRequest, match="no connection to the host"):
        fetch(location, ["127.0.0.2"], max_bytes=1000, deadline=deadline)


def test_a_page_is_no_image(pictures: PictureServer) -> None:
    with pytest.raises(InvalidRequest, match="not a readable image") as caught:
        loader(pictures).load([ImageSource(f"https://localhost:{pictures.server_port}/page", "messages[0].content[1]")])
    assert caught.value.field == "messages[0].content[1]"


# Decoding


@pytest.mark.parametrize("form", ["PNG", "WEBP", "GIF", "JPEG"])
def test_formats(form: str) -> None:
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


def test_other_formats_are_not_read() -> None:
    for form in ("BMP", "TIFF", "ICO", "PPM"):
        data = picture((16, 16), form)
        assert decode(data) is None
        with pytest.raises(InvalidRequest, match="not a readable image"):
            count_pixels(data)


def test_transparent_is_white() -> None:
    assert decoded(saved(PIL.Image.new("RGBA", (1, 1), (0, 0, 0, 0)))).data == b"\xff\xff\xff"
    keyed = PIL.Image.new("RGB", (1, 1), (1, 2, 3))
    assert decoded(saved(keyed, transparency=(1, 2, 3))).data == b"\xff\xff\xff"


def test_sixteen_bits_a_pixel() -> None:
    grey = PIL.Image.new("I;16", (1, 1), 0x8000)
    assert decoded(saved(grey)).data == b"\x80\x80\x80"


def test_a_camera_held_upright() -> None:
    # Turned by 90 degrees; and a width, before that, which is a text.
    tags = struct.pack("<HHI4s", 0x0100, 2, 4, b"abc") + struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0)
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + tags + bytes(4)
    assert decoded(picture((4, 3), "JPEG", exif=exif)).width == 3


def test_the_first_frame_counts() -> None:
    frames = [PIL.Image.new("RGB", (2, 2), colour) for colour in ("red", "blue")]
    data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decoded(data).data[:3] == b"\xff\0\0"


def bomb(width: int, height: int) -> bytes:
    """A PNG of black pixels, a thousandth of their size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    rows = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_a_decompression_bomb_is_refused_before_it_is_decoded() -> None:
    data = bomb(30_000, 30_000)
    assert len(data) < 200_000
    with pytest.raises(InvalidRequest, match="30000 x 30000 pixels"):
        image_loader(ServingProperties()).load([ImageSource(data_url(data), "image")])


def test_a_line_of_pixels_is_refused() -> None:
    """Some models' processors cut it into a hundred thousand parts."""
    with pytest.raises(InvalidRequest, match="at most 200 times"):
        image_loader(ServingProperties()).load([ImageSource(data_url(bomb(201, 1)), "image")])
    assert image_loader(ServingProperties()).load([ImageSource(data_url(bomb(200, 1)), "image")])


def test_a_text_bomb_in_a_small_image_is_refused() -> None:
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_text("comment", "x" * 100_000_000, zip=True)
    data = picture(pnginfo=info)
    assert len(data) < 200_000
    assert decode(data) is None


def progressive(side: int, scans: int) -> bytes:
    """A grey JPEG with one scan over and over, 48 bytes for each."""
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


def test_the_decoder(decoder: LimitedProcess) -> None:
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
def test_what_the_decoder_does_not_survive_is_the_clients_mistake(
    decoder: LimitedProcess, data: Callable[[], bytes], cause: str
) -> None:
    image = encoded(data())
    with pytest.raises(InvalidRequest, match=cause) as caught:
        decode_image(EncodedImage(image.data, min(image.pixels, 1 << 26), image.field), decoder, math.inf)
    assert caught.value.field == "here"
    assert decode_image(encoded(picture()), decoder, math.inf).size == (4, 3)


def test_a_turn_that_is_too_short_for_an_image(decoder: LimitedProcess) -> None:
    """It is not the image's fault: a longer one may come."""
    with pytest.raises(Expired):
        decode_image(encoded(progressive(1000, 2000)), decoder, 0.05)


def test_the_largest_image_that_may_be(decoder: LimitedProcess) -> None:
    data = saved(PIL.Image.new("RGBA", (8192, 8192), (1, 2, 3, 128)), compress_level=1)
    assert decode_image(encoded(data), decoder, math.inf).size == (8192, 8192)


def with_images(*images: EncodedImage) -> TokenRequest:
    prompt = ImagePrompt("", list(images))
    return TokenRequest(request_id="r", prompt_token_ids=[1], sampling_params=SamplingParams(), image_prompt=prompt)


@pytest.fixture
def preparer() -> Iterator[ImagePreparer[list[tuple[int, int]]]]:
    started = ImagePreparer(lambda _request, images: [image.size for image in images])
    yield started
    started.close()


def test_prompts_with_light_images_pass_heavy_ones(preparer: ImagePreparer[list[tuple[int, int]]]) -> None:
    """In order of arrival, the last would wait until each of the others has had all of its time."""
    scans = encoded(progressive(2000, 60_000))
    heavy = [preparer.submit(with_images(scans)) for _ in range(4)]
    light = preparer.submit(with_images(encoded(picture()), encoded(picture((5, 6)))))
    assert light is not None
    assert light.result(timeout=120) == [(4, 3), (5, 6)]
    assert not any(future is None or future.done() for future in heavy)


def test_samples_share_their_images(preparer: ImagePreparer[list[tuple[int, int]]]) -> None:
    """One of them may go: the others have theirs, prepared once."""
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
    assert preparer.submit(msgspec.structs.replace(request, image_prompt=None)) is None


@given(st.binary(max_size=200), st.integers(0, 60))
def test_broken_files_are_the_clients_mistake(noise: bytes, kept: int) -> None:
    for data in (noise, picture()[:kept] + noise):
        try:
            width, height = count_pixels(data)
        except InvalidRequest:
            continue
        if width * height < 10_000:
            decode(data)  # raises nothing


@pytest.mark.parametrize("url", ["data:,", "data:image/png,abc", "data:image/png;base64,***", "data:image/png;base64"])
def test_data_urls_that_are_none(url: str) -> None:
    with pytest.raises(InvalidRequest):
        decode_data_url(url, 1000)


@pytest.mark.parametrize("size", [49_151, 49_152, 49_153, 200_000])
def test_a_long_data_url_is_decoded_in_pieces(size: int) -> None:
    data = bytes(range(256)) * 1000
    assert decode_data_url(data_url(data[:size]), size) == data[:size]


@pytest.mark.parametrize("end", ["A" * 65_534 + "==", "A" * 65_535 + "="])
def test_nothing_may_follow_the_padding(end: str) -> None:
    with pytest.raises(InvalidRequest, match="is not base64"):
        decode_data_url(f"data:image/png;base64,{end}AAAA", 100_000)


@given(st.binary(max_size=100))
def test_data_urls(data: bytes) -> None:
    assert decode_data_url(data_url(data), 100) == data
    with pytest.raises(InvalidRequest, match="more than"):
        decode_data_url(data_url(data + bytes(6)), len(data))


def test_limits_are_of_all_images_together() -> None:
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
    ("option", "limit"), [(None, DEFAULT_MAX_IMAGES), ('{"image": 2}', 2), ('{"image": {"count": 3}, "video": 1}', 3)]
)
def test_the_number_of_images(option: str | None, limit: int) -> None:
    loading = image_loader(ServingProperties(limit_mm_per_prompt=option))
    sources = [ImageSource(data_url(picture()), "image")] * limit
    assert len(loading.load(sources)) == limit
    with pytest.raises(InvalidRequest):
        loading.load([*sources, sources[0]])


@pytest.mark.parametrize(
    "option",
    ["4", "image=4", '{"image": "many"}', '{"image": null}', '{"image": -1}', '{"image": 2.5}', '{"image": true}'],
)
def test_a_limit_that_is_none(option: str) -> None:
    with pytest.raises(ConfigError, match="limit_mm_per_prompt"):
        image_loader(ServingProperties(limit_mm_per_prompt=option))


def test_certificates_of_the_machine_are_used(
    pictures: PictureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the test's authority among them, its server is nobody's."""
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    monkeypatch.setenv("SSL_CERT_FILE", str(other))
    with pytest.raises(InvalidRequest, match="SSLCertVerificationError"):
        get(pictures, "/red.png")
