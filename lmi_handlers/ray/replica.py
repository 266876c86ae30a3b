"""The deployment: one actor of Ray Serve for each replica. It starts our server, and passes requests to it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping

from starlette.requests import Request

from lmi_handlers.ray.forwarding import Forwarded
from lmi_handlers.ray.server import NotReady, ReplicaServer

logger = logging.getLogger(__name__)


class Replica:
    """Ray Serve calls these methods. `environ` is added to the server's environment."""

    async def __init__(self, environ: Mapping[str, str]) -> None:  # type: ignore[misc]  # Ray awaits it
        """Start the server, and return when its model is loaded: Ray sends requests only then."""
        self._server = ReplicaServer(environ)
        try:
            await self._server.wait_ready()
        except BaseException:
            await self._server.stop()
            raise
        self._is_ready = True
        self._watch = asyncio.create_task(self._end_with_server())

    async def _end_with_server(self) -> None:
        """End this process when the server has ended, so that Ray replaces it and nobody connects to it any more.

        HAProxy sends a request that cannot connect to another replica. Ray's health checks would take some seconds.
        """
        status = await self._server.wait_ended()
        logger.error("the server of this replica has ended with status %s", status)
        self._server.remove_files()
        os._exit(1)

    async def __call__(self, _request: Request) -> Forwarded:
        """Answer a request."""
        return Forwarded(self._server.session)

    async def check_health(self) -> None:
        """Say whether requests may be sent here.

        The first check that finds the server not ready fails, and Ray's HAProxy turns to other replicas. The next waits
        until an engine that was restarted has loaded its model. Ray replaces the replica if the checks still fail: the
        server has ended, or it was not ready within `health_check_timeout_s`.
        """
        if not self._is_ready:
            await self._server.wait_ready()
            self._is_ready = True
        try:
            await self._server.check()
        except NotReady:
            self._is_ready = False
            raise

    async def __del__(self) -> None:
        """End the server. Ray has waited for the last requests."""
        if hasattr(self, "_watch"):
            self._watch.cancel()
        if hasattr(self, "_server"):
            await self._server.stop()
