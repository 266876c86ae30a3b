"""The peer of the front-end benchmark: FastAPI with one route that writes prepared records from memory.

Run by uvicorn. `BENCH_PACE` is the number of records per second in each stream; without it, streams never wait.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

app = FastAPI()
records = Path(os.environ["BENCH_RECORDS"]).read_bytes().splitlines(keepends=True)
pace = float(os.environ.get("BENCH_PACE", "inf"))


@app.get("/ping")
async def ping() -> dict[str, str]:
    """Report ready as soon as the server listens."""
    return {"status": "Healthy"}


@app.post("/invocations")
async def invocations(body: dict[str, object]) -> StreamingResponse:  # noqa: ARG001  makes FastAPI parse the body
    """Stream the same answer to every request, record by record."""
    return StreamingResponse(stream(), media_type="application/jsonlines")


async def stream() -> AsyncIterator[bytes]:
    """Yield each record when it is due."""
    started = time.monotonic()
    for position, record in enumerate(records):
        wait = started + position / pace - time.monotonic()
        if wait > 0:
            await asyncio.sleep(wait)
        yield record
