"""The peer of the front end: FastAPI with one route, which writes prepared records from memory. Run by uvicorn."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import StreamingResponse

app = FastAPI()
records = Path(os.environ["BENCH_RECORDS"]).read_bytes().splitlines(keepends=True)


@app.get("/ping")
async def ping() -> dict[str, str]:
    """Ready as soon as it listens."""
    return {"status": "Healthy"}


@app.post("/invocations")
async def invocations(body: dict[str, object]) -> StreamingResponse:  # noqa: ARG001  FastAPI parses it, as a server must
    """The same answer to every request, record by record."""
    return StreamingResponse(stream(), media_type="application/jsonlines")


async def stream() -> AsyncIterator[bytes]:
    """Yield one record after the other, without ever waiting for the next."""
    for record in records:
        yield record
