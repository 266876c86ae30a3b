"""Exchanges load reports with the other replicas, twice per second."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import ray
from ray import serve
from ray.serve.exceptions import RayServeException

from lmi_handlers.config.server_settings import ip_address
from lmi_handlers.ray.identity import listening_host
from lmi_handlers.ray.routing.members import ACTOR, Member
from lmi_handlers.ray.routing.table import Table

logger = logging.getLogger(__name__)

_PERIOD_SECONDS = 0.5
_PAUSE_SECONDS = 0.05
"""Between two exchanges: anybody can ask for sessions of replicas that are not known."""

_ANSWER_SECONDS = 5.0
_FAILURES = (ray.exceptions.RayError, RayServeException, ValueError, TimeoutError, asyncio.TimeoutError)


class Membership:
    """Tells the others of this replica, and keeps its `table` of them up to date.

    While the actor does not answer, the table stays as it is.
    """

    def __init__(self, table: Table, is_ready: Callable[[], bool]) -> None:
        self.table = table
        self._is_ready = is_ready
        self._host: str | None = None
        self._port: int | None = None
        self._announced: asyncio.Task[bool] | None = None
        self._actor: Any = None
        self._is_lost = False
        self._exchanging = asyncio.Lock()
        self._began = 0.0
        self._is_complete = False

    async def listens_on(self, port: int) -> None:
        """Note the port of Ray's HTTP server in this replica, which Ray chooses and each request tells.

        The first request waits until the actor knows it: the next one of its session may reach any replica.
        """
        if port != self._port:
            self._port = port
            self._announced = asyncio.create_task(self.exchange())
        if self._announced is not None and not self._announced.done():
            await asyncio.wait((self._announced,))

    async def follow(self) -> None:
        """Report and listen until cancelled."""
        while True:
            await self.join()
            await asyncio.sleep(_PERIOD_SECONDS)

    async def join(self) -> None:
        """Find the actor, which may take Ray a minute, and report. Logs failures."""
        try:
            if self._host is None:
                self._host = await asyncio.to_thread(_host)
            if self._actor is None:
                self._actor = await asyncio.to_thread(serve.get_deployment_actor, ACTOR)
        except _FAILURES as error:
            self._lost(error)
        else:
            await self.exchange()

    async def exchange(self) -> bool:
        """Report, and return whether all replicas are known now. Logs failures. Requests may wait for this.

        Concurrent callers share one exchange. Exchanges are at least a pause apart.
        """
        called = time.monotonic()
        async with self._exchanging:
            if self._began <= called:
                await asyncio.sleep(self._began + _PAUSE_SECONDS - time.monotonic())
                self._began = time.monotonic()
                self._is_complete = await self._exchange()
            return self._is_complete

    async def _exchange(self) -> bool:
        if self._actor is None:
            return False
        try:
            members = await asyncio.wait_for(self._actor.report.remote(self._member), _ANSWER_SECONDS)
        except _FAILURES as error:
            self._lost(error)
            return False
        self._is_lost = False
        if members is None:
            return False
        self.table.update(members)
        return True

    def _lost(self, error: BaseException) -> None:
        self._actor = None  # Ray starts another one
        if not self._is_lost:
            logger.warning("using the last known routing table: %s", error)
        self._is_lost = True

    @property
    def _member(self) -> Member | None:
        """The entry of this replica itself. None if it must not get requests."""
        if self._host is None or self._port is None or not self._is_ready():
            return None
        return Member(self.table.name, self._host, self._port, self.table.load)


def _host() -> str:
    """Return the address at which other replicas reach this one: the one that Serve listens on, or that of the node."""
    listens = listening_host()
    address = ip_address(listens)
    if not listens or (address is not None and address.is_unspecified):
        node: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return node
    return listens
