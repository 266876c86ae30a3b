"""The server of one replica: `lmi serve` in processes of its own, and what the replica knows about it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import aiohttp

from lmi_handlers.workers.process import KeptProcess, ProcessStays, describe

_POLL_SECONDS = 0.2
_ANSWER_SECONDS = 10.0
"""A server that does not answer `/ping` for this long is not ready."""

_METRICS_SECONDS = 3.0
"""Less than a replica waits for the pages of the others."""

_END_SECONDS = 30.0
"""The server itself takes up to 27 seconds: it lets its requests finish."""

HOST = "localhost"
"""A placeholder for the host in URLs: the server listens on a Unix socket."""


class ServerEnded(Exception):
    """The server has given up, or was killed."""


class NotReady(Exception):
    """The server does not accept requests at the moment."""


class ReplicaServer:
    """Starts and stops the server. Every wait has a timeout."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="lmi-ray-"))
        self._path = self._directory / "web.sock"  # needs no free port, and its directory keeps other users out
        self._process = KeptProcess(
            "lmi_handlers.workers.bound",
            "lmi_handlers.launch.gunicorn_app",
            *(
                "-c",
                "python:lmi_handlers.gunicorn_conf",
                "--bind",
                f"unix:{self._path}",
                "lmi_handlers.app:create_app()",
            ),
            environ={**os.environ, **environ, "LMI_STARTED": str(time.monotonic())},
        )
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """Connections to the server."""
        if self._session is None:
            connector = aiohttp.UnixConnector(str(self._path), limit=0, keepalive_timeout=60)  # the server's is 75 s
            self._session = session_of(connector, _ANSWER_SECONDS)
        return self._session

    async def wait_ready(self) -> None:
        """Wait until the server accepts requests. The server decides how long loading may take. Raises `ServerEnded`."""
        while True:
            with contextlib.suppress(NotReady):
                await self.check()
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def wait_ended(self) -> int:
        """Wait until the server ends, for whatever reason, and return its status."""
        return await asyncio.to_thread(self._process.wait)

    async def check(self) -> None:
        """Ask `/ping`. Raises `NotReady` or `ServerEnded`."""
        if (status := self._process.poll()) is not None:
            raise ServerEnded(f"the server has ended with {describe(status)}; its log says why")
        try:
            limit = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
            async with self.session.get(f"http://{HOST}/ping", timeout=limit) as answer:
                if answer.status != 200:
                    raise NotReady(await answer.text())
        except (aiohttp.ClientError, TimeoutError, asyncio.TimeoutError) as error:
            raise NotReady(f"/ping is not answered: {error or type(error).__name__}") from error

    async def metrics(self) -> str:
        """Return the page `/metrics`. Raises `NotReady`."""
        if self.session.closed:
            raise NotReady("the server is ending")
        limit = aiohttp.ClientTimeout(total=_METRICS_SECONDS)
        try:
            async with self.session.get(f"http://{HOST}/metrics", raise_for_status=True, timeout=limit) as answer:
                return await answer.text()
        except (aiohttp.ClientError, TimeoutError, asyncio.TimeoutError) as error:
            raise NotReady(f"/metrics is not answered: {error or type(error).__name__}") from error

    async def stop(self) -> None:
        """End the server. It finishes the requests that it still has."""
        if self._session is not None:
            await self._session.close()
        with contextlib.suppress(ProcessStays):
            await asyncio.to_thread(self._process.end, signal.SIGTERM, _END_SECONDS)
        self.remove_files()

    def remove_files(self) -> None:
        """Remove the directory of the socket."""
        shutil.rmtree(self._directory, ignore_errors=True)


def session_of(connector: aiohttp.BaseConnector, connect_seconds: float) -> aiohttp.ClientSession:
    """Return connections that pass on what is sent: they follow no redirect, keep no cookie and decompress nothing."""
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds),  # the server has the deadlines
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        auto_decompress=False,
    )
