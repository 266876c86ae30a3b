"""From which hosts, addresses and networks images may be fetched."""

from __future__ import annotations

import ipaddress

import pytest
from facts import raises
from hypothesis import given
from hypothesis import strategies as st

from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.media.allowed import Location, allowed_media, embedded, is_public

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
def test_public_addresses_are_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@given(st.ip_addresses(v=4))
def test_ipv6_forms_of_an_ipv4_address_are_as_public_as_the_address(address: ipaddress.IPv4Address) -> None:
    for form in (
        f"::ffff:{address}",
        f"64:ff9b::{address}",
        str(ipaddress.IPv6Address((0x2002 << 112) | int(address) << 80)),
    ):
        address_in_ipv6 = ipaddress.ip_address(form)
        assert embedded(address_in_ipv6) == address
        assert is_public(address_in_ipv6) == is_public(address)


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
def test_urls_of_allowed_hosts_are_parsed(url: str, location: Location) -> None:
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
def test_all_other_urls_are_rejected(url: str) -> None:
    with pytest.raises(InvalidRequest):
        ALLOWED.locate(url)


@given(st.text(alphabet=st.sampled_from("htps:/@\\#?.[]%0aimages.example.com\t\n evil:443"), max_size=60))
def test_a_parsed_url_always_has_an_allowed_host(rest: str) -> None:
    try:
        location = ALLOWED.locate(f"https://{rest}")
    except InvalidRequest:
        return
    assert (location.host, location.port) in ALLOWED.hosts
    assert location.target.startswith("/")
    assert location.target.isascii()
    assert not any(character.isspace() for character in location.target)


def test_the_error_for_a_host_with_a_private_address_does_not_contain_the_address() -> None:
    with raises(InvalidRequest, "public Internet") as caught:
        allowed_media("localhost", None).resolve(Location("localhost", 443, "/"))
    assert "127.0.0.1" not in str(caught.value)
    assert "::1" not in str(caught.value)


def test_the_operator_can_allow_a_network() -> None:
    location = Location("localhost", 443, "/")
    assert allowed_media("localhost", "127.0.0.0/8, ::1/128").resolve(location)
    with pytest.raises(InvalidRequest):
        allowed_media("localhost", "10.0.0.0/8").resolve(location)
