"""The deployment: one actor of Ray Serve for each replica. It starts our server, and passes requests to it."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request

from lmi_handlers.ray.forwarding import Forwarded
from lmi_handlers.ray.server import NotReady, ReplicaServer


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
        if hasattr(self, "_server"):
            await self._server.stop()
