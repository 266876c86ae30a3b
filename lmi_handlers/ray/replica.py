"""The deployment: one actor of Ray Serve for each replica. It starts our server, and passes requests to it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping

from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from lmi_handlers.config.server_settings import FRONT_HOST_VARIABLE
from lmi_handlers.ray.answering import answer_to
from lmi_handlers.ray.cluster_metrics import ClusterMetrics
from lmi_handlers.ray.identity import listening_host, own_identity, server_environ
from lmi_handlers.ray.metrics_page import load_in
from lmi_handlers.ray.routing.membership import Membership
from lmi_handlers.ray.routing.router import Router, Routing, is_behind_haproxy
from lmi_handlers.ray.routing.table import Table
from lmi_handlers.ray.server import NotReady, ReplicaServer
from lmi_handlers.workers.process import describe

logger = logging.getLogger(__name__)

REPLICA_VARIABLE = "LMI_REPLICA"
"""The server's variable for the replica's name. Its sessions' ids end with it."""

_SESSIONS_VARIABLE = "SAGEMAKER_ENABLE_STATEFUL_SESSIONS"


class Replica:
    """Ray Serve calls these methods. `environ` is added to the server's environment.

    If there may be several replicas, `routing` says how they share requests.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, environ: Mapping[str, str], routing: Routing | None = None
    ) -> None:
        """Start the server, and return when its model is loaded: Ray sends requests only then."""
        identity = own_identity()
        self._is_alone = routing is None
        self._router: Router | None = None
        if routing is not None and is_behind_haproxy(os.environ):
            name = serve.get_replica_context().replica_tag
            environ = {**environ, REPLICA_VARIABLE: name}
            self._router = Router(routing, Membership(Table(name), lambda: self._is_ready))
        elif routing is not None:  # a session's requests would go to any replica
            environ = {_SESSIONS_VARIABLE: "false", **environ}
        environ = {**environ, FRONT_HOST_VARIABLE: await asyncio.to_thread(listening_host)}
        self._server = ReplicaServer(server_environ(environ, identity))
        self._metrics = ClusterMetrics(self._server.metrics, identity)
        try:
            await self._server.wait_ready()
        except BaseException:
            await self._server.stop()
            raise
        self._is_ready = True
        self._watch = asyncio.create_task(self._end_with_server())
        if self._router is not None:
            await self._router.membership.join()
            self._following = asyncio.create_task(self._router.membership.follow())

    async def _end_with_server(self) -> None:
        """End this process when the server has ended, so that Ray replaces it and nobody connects to it any more.

        HAProxy sends a request that cannot connect to another replica. Ray's health checks would take some seconds.
        """
        status = await self._server.wait_ended()
        logger.error("the server of this replica has ended with %s", describe(status))
        self._server.remove_files()
        os._exit(1)

    async def __call__(self, request: Request) -> Response:
        """Answer a request."""
        return await answer_to(
            request, self._server.session, self._metrics.answer, self._router, is_alone=self._is_alone
        )

    async def metrics_page(self) -> bytes:
        """Return the metrics of this replica. Called by a replica that is asked for the metrics of all."""
        return await self._metrics.own_page()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the load, for the autoscaling policy. Nothing is recorded if the server does not tell it."""
        try:
            return load_in(await self._server.metrics())
        except NotReady:
            return {}

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
        if hasattr(self, "_following"):
            self._following.cancel()
        if hasattr(self, "_router") and self._router is not None:
            await self._router.close()
        if hasattr(self, "_server"):
            await self._server.stop()
