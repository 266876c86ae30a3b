"""A replica's place among the others: it reports how busy it is, and hears of them, twice per second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import ray
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException

from lmi_handlers.config.server_settings import ip_address
from lmi_handlers.ray.routing.members import ACTOR, Member
from lmi_handlers.ray.routing.router import Router

logger = logging.getLogger(__name__)

_PERIOD_SECONDS = 0.5
_ANSWER_SECONDS = 5.0


class Membership:
    """Keeps a router's table up to date. While the actor does not answer, the table stays as it is."""

    def __init__(self, router: Router, is_ready: Callable[[], bool]) -> None:
        self._host: str | None = None
        self._router = router
        self._is_ready = is_ready
        self._actor: Any = None
        self._is_lost = False

    async def follow(self) -> None:
        """Report and listen until cancelled."""
        while True:
            await self.exchange()
            await asyncio.sleep(_PERIOD_SECONDS)

    async def exchange(self) -> None:
        """Report once. Logs failures."""
        try:
            if self._host is None:
                self._host = await asyncio.to_thread(_host)
            if self._actor is None:
                self._actor = await asyncio.to_thread(serve.get_deployment_actor, ACTOR)
            members = await asyncio.wait_for(self._actor.report.remote(self._member), _ANSWER_SECONDS)
            if members is not None:
                self._router.table.update(members)
        except (ray.exceptions.RayError, RayServeException, ValueError, TimeoutError, asyncio.TimeoutError) as error:
            self._actor = None  # Ray starts another one
            if not self._is_lost:
                logger.warning("requests are routed by what was known before: %s", error)
            self._is_lost = True
        else:
            self._is_lost = False

    @property
    def _member(self) -> Member | None:
        """Itself, or None if nobody should send it a request."""
        if self._host is None or self._router.port is None or not self._is_ready():
            return None
        return Member(self._router.table.name, self._host, self._router.port, self._router.table.load)


def _host() -> str:
    """Return the address at which other replicas reach this one: the one that Serve listens on, or that of the node."""
    client = _get_global_client()
    listens: str = client.http_config.host if client is not None else ""
    address = ip_address(listens)
    if not listens or (address is not None and address.is_unspecified):
        node: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return node
    return listens
