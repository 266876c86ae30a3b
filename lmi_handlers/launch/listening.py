"""Log lines once the server listens: who can connect, and where the console is."""

from __future__ import annotations

from collections.abc import Sequence

from lmi_handlers.config.server_settings import ALL_INTERFACES, LOOPBACK, is_loopback, netloc

Address = tuple[str, int] | None
"""Host and port. None is a Unix socket."""


def host_of(addresses: Sequence[Address]) -> str:
    """Return the host that stands for all addresses: of loopback only if nobody else can reach any of them."""
    if addresses and all(address is not None and is_loopback(address[0]) for address in addresses):
        return addresses[0][0]  # type: ignore[index]  # none of them is None
    return ALL_INTERFACES


def who_can_connect(addresses: Sequence[Address], *, key: str, no_console: str) -> str:
    """Return one line. `key` is the variable with the clients' keys, `no_console` why there is no console.

    Both are "" if there is none of that.
    """
    own = [address for address in addresses if address is not None]
    if not own:
        reach = "whoever may open the Unix socket can connect"
    elif is_loopback(host_of(addresses)):
        reach = "only this machine can connect (for others: --host 0.0.0.0)"
    elif is_loopback(host_of(own)):
        reach = "only this machine and whoever may open the Unix socket can connect"
    else:
        reach = "other machines can connect"
    needed = f"with the {key}" if key else "without a key (API_KEY is not set)"
    return f"{reach}, {needed}; {_where(own, no_console)}"


def _where(addresses: Sequence[tuple[str, int]], no_console: str) -> str:
    if no_console:
        return f"no console, {no_console}"
    if addresses:
        host, port = addresses[0]
        name = {ALL_INTERFACES: LOOPBACK, "::": "::1"}.get(host, host)
        return f"console: http://{netloc(name, port)}/"
    return "console: / of the socket"
