"""Sources of images and sounds: hosts that the operator allows, at public addresses or in allowed networks."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterator

import msgspec

from lmi_handlers.core.errors import ConfigError, InvalidRequest

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

HTTPS_PORT = 443


class Location(msgspec.Struct, frozen=True):
    """A parsed URL. `target` is the path and query. The URL is parsed once, and only this result is used afterwards."""

    host: str
    port: int
    target: str


class AllowedMedia(msgspec.Struct, frozen=True):
    """`hosts` are pairs of lower-case name and port. `networks` are non-public networks that are also allowed."""

    hosts: frozenset[tuple[str, int]] = frozenset()
    networks: tuple[IpNetwork, ...] = ()

    def locate(self, url: str) -> Location:
        """Parse a URL. Raises `InvalidRequest` if it is not a plain https: URL of an allowed host."""
        match = _URL.fullmatch(url)
        if match is None:
            raise InvalidRequest("is neither a data: nor a plain https: URL")
        host, port = match["host"].lower(), int(match["port"] or HTTPS_PORT)
        if (host, port) not in self.hosts:
            raise InvalidRequest(
                f"files from {match['host'][:100]!r} port {port} are not allowed (option.allowed_media_domains)"
            )
        target = match["target"] or "/"
        return Location(host, port, target if target.startswith("/") else f"/{target}")

    def resolve(self, location: Location) -> list[str]:
        """Return the host's addresses. Raises `InvalidRequest` if the host is unknown or any address is not allowed.

        Error messages never contain an address, because clients must not learn how names resolve inside this network.
        """
        try:
            found = socket.getaddrinfo(location.host, location.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise InvalidRequest(f"the host {location.host!r} is unknown") from error
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        if not all(self._may_ask(ipaddress.ip_address(address)) for address in addresses):
            raise InvalidRequest(
                f"the host {location.host!r} is neither on the public Internet nor in option.allowed_media_networks"
            )
        return addresses

    def _may_ask(self, address: IpAddress) -> bool:
        return is_public(address) or any(embedded(address) in network for network in self.networks)


def allowed_media(domains: str | None, networks: str | None) -> AllowedMedia:
    """Parse the option values, which are comma-separated lists. Raises `ConfigError` for an invalid entry."""
    return AllowedMedia(
        frozenset(_read_host(entry) for entry in _entries(domains)),
        tuple(_read_network(entry) for entry in _entries(networks)),
    )


def is_public(address: IpAddress) -> bool:
    """True if the address belongs to a host on the public Internet.

    IPv6 forms of IPv4 addresses are unwrapped first.
    """
    real = embedded(address)
    if isinstance(real, ipaddress.IPv6Address) and real not in _GLOBAL_UNICAST:
        return False
    return real.is_global and not real.is_multicast


def embedded(address: IpAddress) -> IpAddress:
    """Return the IPv4 address embedded in an IPv6 address (mapped, 6to4 or NAT64), otherwise the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")

# Rejects everything that two URL parsers may read differently: user names, brackets in the host, backslashes,
# non-ASCII.
_URL = re.compile(
    r"[Hh][Tt][Tt][Pp][Ss]://(?P<host>[A-Za-z0-9.-]+)(?::(?P<port>[0-9]{1,5}))?(?P<target>[/?][!$-;=?-Z\[\]_a-z~]*)?(?:#\S*)?"
)
_ENTRY = re.compile(r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)(?::(?P<port>[0-9]{1,5}))?")


def _entries(text: str | None) -> Iterator[str]:
    return filter(None, (entry.strip() for entry in (text or "").split(",")))


def _read_host(entry: str) -> tuple[str, int]:
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise ConfigError(
            f"option.allowed_media_domains has {entry!r}, which is neither a host, such as images.example.com, nor host:port"
        )
    return match["host"].lower(), int(match["port"] or HTTPS_PORT)


def _read_network(entry: str) -> IpNetwork:
    try:
        return ipaddress.ip_network(entry)
    except ValueError as error:
        raise ConfigError(
            f"option.allowed_media_networks has {entry!r}, which is not a network, such as 10.0.0.0/8"
        ) from error
