"""`GET /metrics` of a cluster: the pages of all replicas as one, with the labels `replica` and `node`.

Whichever replica is asked asks all others through Ray, which knows them. Each of them adds the labels to its own page, so
that the work is spread, and sends it compressed: from 47 kB to 5. However often anybody asks, each page is made at most
once per second. A replica that hangs is left out after some seconds, and counted as missing.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from starlette.responses import Response

from lmi_handlers.metrics.requests import CONTENT_TYPE
from lmi_handlers.ray.identity import Identity
from lmi_handlers.ray.metrics_page import Kept, labelled, merged

_WAIT_SECONDS = 5.0
"""Prometheus itself waits for ten by default."""

_METHOD = "metrics_page"
"""Of the deployment."""

_REPLICAS = """\
# HELP lmi_replicas Replicas that Ray lists as running.
# TYPE lmi_replicas gauge
lmi_replicas {}
# HELP lmi_replicas_missing Those of them whose metrics are not on this page, because they have not answered.
# TYPE lmi_replicas_missing gauge
lmi_replicas_missing {}
"""

logger = logging.getLogger(__name__)


class ClusterMetrics:
    """The metrics of all replicas. `read` returns the page of this replica's server."""

    def __init__(self, read: Callable[[], Awaitable[str]], identity: Identity) -> None:
        self._read = read
        self._identity = identity
        self._own = Kept(self._labelled)
        self._all = Kept(self._collected)
        self._handle: Any = None

    async def answer(self) -> Response:
        """Answer `GET /metrics`."""
        try:
            return Response(await self._all.get(), headers={"Content-Type": CONTENT_TYPE})
        except (RayError, RayServeException, TimeoutError, asyncio.TimeoutError) as error:
            logger.warning("the replicas cannot be asked for their metrics: %s", error or type(error).__name__)
            return Response("Ray does not say which replicas there are\n", 503, media_type="text/plain")

    async def own_page(self) -> bytes:
        """Return the page of this replica, compressed. Raises what `read` raises."""
        return await self._own.get()

    async def _labelled(self) -> bytes:
        page = labelled(await self._read(), self._identity.replica, self._identity.node)
        return zlib.compress(page.encode(), 1)

    async def _collected(self) -> bytes:
        answers = await self._answers()
        found = [answer for answer in answers if isinstance(answer, bytes)]
        for error in answers:
            if isinstance(error, BaseException):
                logger.warning("a replica has not sent its metrics: %s", error)
        return await asyncio.to_thread(_page, found, len(answers))

    async def _answers(self) -> list[bytes | BaseException]:
        """Return the pages of all replicas, or why they are missing."""
        if self._handle is None:
            context = serve.get_replica_context()
            self._handle = serve.get_deployment_handle(context.deployment, context.app_name)
        # Ray's own way to wait for all results has none if one replica hangs.
        asking = self._handle.broadcast(_METHOD)._fetch_replica_results_async()  # noqa: SLF001
        asked = await asyncio.wait_for(asking, _WAIT_SECONDS)
        waits = [asyncio.wait_for(each.get_async(), _WAIT_SECONDS) for each in asked]
        answers: list[bytes | BaseException] = await asyncio.gather(*waits, return_exceptions=True)
        return answers


def _page(compressed: list[bytes], replicas: int) -> bytes:
    pages = (zlib.decompress(page).decode() for page in compressed)
    return (_REPLICAS.format(replicas, replicas - len(compressed)) + merged(pages)).encode()
