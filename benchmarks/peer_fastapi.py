"""The peer of the front-end benchmark: FastAPI with one route that writes prepared records from memory.

Run by uvicorn.
"""

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
    """Report ready as soon as the server listens."""
    return {"status": "Healthy"}


@app.post("/invocations")
async def invocations(body: dict[str, object]) -> StreamingResponse:  # noqa: ARG001  makes FastAPI parse the body
    """Stream the same answer to every request, record by record."""
    return StreamingResponse(stream(), media_type="application/jsonlines")


async def stream() -> AsyncIterator[bytes]:
    """Yield the records without ever waiting."""
    for record in records:
        yield record
