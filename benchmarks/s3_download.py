"""Downloading one large object from S3 into the cache, verified, against boto3's own `download_file`."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import boto3
import s3_store
from report import PAIRED_HEADER, Paired, Target, print_table
from s3_store import BUCKET, KEY

from lmi_handlers.model_files.fetch import fetched
from lmi_handlers.model_files.model_cache import ModelCache
from lmi_handlers.workers.process import free_ports

RATE = Target(0.9)
_SIZE = 1 << 30
_ROUNDS = 5


def bench_s3(directory: Path) -> None:
    """Print bytes per second of both sides. The server shares the processors with the client."""
    ours, peers = [], []
    source = directory / "source"
    data = os.urandom(1 << 20) * (_SIZE >> 20)
    source.write_bytes(data)
    with _server(source, base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()) as endpoint:
        del data
        os.environ |= {
            "AWS_ENDPOINT_URL_S3": endpoint,
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
            "AWS_REGION": "us-east-1",
        }
        for number in range(_ROUNDS):
            ours.append(_SIZE / _seconds_of_ours(directory / f"cache-{number}"))
            peers.append(_SIZE / _seconds_of_boto3(directory / "peer"))
    row = Paired(ours, peers).row("verified / download_file", "MB/s", scale=1e-6, target=RATE)
    print_table("S3: one object of 1 GiB", PAIRED_HEADER, [row])


def _seconds_of_ours(cache: Path) -> float:
    started = time.perf_counter()
    with fetched(f"s3://{BUCKET}/m/", ModelCache(cache, None), report=_ignore, progress=_ignore):
        seconds = time.perf_counter() - started
    shutil.rmtree(cache)
    return seconds


def _seconds_of_boto3(target: Path) -> float:
    started = time.perf_counter()
    with closing(boto3.Session().client("s3")) as client:
        client.download_file(BUCKET, KEY, str(target))
    seconds = time.perf_counter() - started
    target.unlink()
    return seconds


@contextmanager
def _server(source: Path, crc32: str) -> Iterator[str]:
    [port] = free_ports(1)
    process = subprocess.Popen([sys.executable, s3_store.__file__, str(port), str(source), crc32])
    try:
        while process.poll() is None and socket.socket().connect_ex(("127.0.0.1", port)):
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _ignore(*_: object) -> None:
    pass
