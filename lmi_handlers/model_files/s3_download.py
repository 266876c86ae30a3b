"""Downloads objects from S3 into a folder: in parallel and verified. What is complete is not downloaded again.

boto3's transfer manager fetches the ranges, several of several files at once. It cannot continue a file at its middle,
so a file that was cut off starts again; the others do not.
"""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boto3.s3.transfer import TransferConfig, create_transfer_manager
from botocore.exceptions import ClientError, FlexibleChecksumError
from s3transfer.subscribers import BaseSubscriber

from lmi_handlers.core.errors import LoadFailed
from lmi_handlers.model_files.arriving import ArrivingFile
from lmi_handlers.model_files.checksum import HASHES, MD5, Checksum
from lmi_handlers.model_files.s3 import CHANGED, MAX_CONNECTIONS, Bucket, S3Object
from lmi_handlers.model_files.s3_url import S3Url

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import HeadObjectOutputTypeDef

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Is called with the bytes that are there and the bytes to be downloaded in all, about once per second."""

_FILES_AT_ONCE = 4
_ATTEMPTS = 3
_PART_SIZE = 8 << 20
_WRITE_SIZE = 1 << 18
"""As in boto3. With 1 MiB, a download takes twice as long while other processes keep the processors busy."""
_INTERVAL = 1.0

_MD5_ETAG = re.compile(r'"?([0-9a-f]{32})(?:-(\d{1,5}))?"?')
_PLAIN_MD5 = ("", "AES256")
"""The kinds of encryption with which the ETag is an MD5."""


class Download:
    """One download into the folder `partial`. `partial/files` holds complete and verified files only."""

    def __init__(self, bucket: Bucket, objects: Sequence[S3Object], partial: Path) -> None:
        self.files = partial / "files"
        self._bucket = bucket
        self._objects = objects
        self._arriving = partial / "arriving"
        self._lock = threading.Lock()
        self._done = 0
        shutil.rmtree(self._arriving, ignore_errors=True)

    @property
    def missing(self) -> int:
        """Bytes that have not been downloaded yet."""
        return sum(item.size for item in self._objects if not (self.files / item.name).is_file())

    def run(self, progress: Progress) -> None:
        """Download what is missing. Raises `ConfigError`, `LoadFailed` or `OSError`, and leaves what is complete."""
        for folder in (self.files, self._arriving):
            folder.mkdir(parents=True, exist_ok=True)
        total = sum(item.size for item in self._objects)
        config = TransferConfig(
            multipart_threshold=1,  # ranges are requested with If-Match, which whole files are not
            multipart_chunksize=_PART_SIZE,
            max_concurrency=MAX_CONNECTIONS,
            io_chunksize=_WRITE_SIZE,
            # boto3's CRT client ignores the endpoint of the client, and does not work without TLS.
            preferred_transfer_client="auto" if self._on_aws else "classic",
        )
        executor = ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="s3")
        try:
            with create_transfer_manager(self._bucket.client, config) as manager:
                pending = {
                    executor.submit(self._fetch, manager, item, self._arriving / str(number))
                    for number, item in enumerate(self._objects)
                }
                while pending:
                    ended, pending = wait(pending, _INTERVAL, FIRST_EXCEPTION)
                    for file in ended:
                        file.result()
                    progress(self._done, total)
        finally:
            executor.shutdown(cancel_futures=True)

    @property
    def _on_aws(self) -> bool:
        return self._bucket.client.meta.endpoint_url.endswith(("amazonaws.com", "amazonaws.com.cn"))

    def _fetch(self, manager: Any, item: S3Object, arriving: Path) -> None:
        target = self.files / item.name
        if target.is_file():  # and verified, by an earlier process
            self._add(item.size)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, _ATTEMPTS + 1):
            with self._bucket.explained(item.key):
                checksum = self._checksum(item)
                intact = self._write(manager, item, arriving, checksum)
            if intact:
                arriving.replace(target)
                return
            logger.warning("object arrived damaged", extra={"key": item.key, "attempt": attempt})
        checked = "size" if checksum is None else f"size or {checksum.algorithm} checksum"
        raise LoadFailed(f"{S3Url(self._bucket.url.bucket, item.key)} arrived {_ATTEMPTS} times with a wrong {checked}")

    def _write(self, manager: Any, item: S3Object, arriving: Path, checksum: Checksum | None) -> bool:
        """Download the object to `arriving`. Return whether it has its size and checksum."""
        file, known = ArrivingFile(arriving, checksum), _Known(item, self._add)
        is_intact = False
        try:
            with contextlib.suppress(FlexibleChecksumError):  # S3 sent the range's own checksum
                manager.download(self._bucket.url.bucket, item.key, file, subscribers=[known]).result()
                is_intact = True
        finally:
            is_intact = file.close(item.size) and is_intact
            if not is_intact:
                self._add(-known.arrived)
        return is_intact

    def _checksum(self, item: S3Object) -> Checksum | None:
        """Return the checksum of the object that is the fastest to compute here, None if there is none.

        Raises `LoadFailed` if the object is not the one that was listed.
        """
        head = self._bucket.client.head_object(Bucket=self._bucket.url.bucket, Key=item.key, ChecksumMode="ENABLED")
        if head["ETag"] != item.etag or head["ContentLength"] != item.size:
            raise LoadFailed(f"{S3Url(self._bucket.url.bucket, item.key)} {CHANGED}")
        return next(filter(None, (self._stored(item, head, algorithm) for algorithm in HASHES)), None)

    def _stored(self, item: S3Object, head: HeadObjectOutputTypeDef, algorithm: str) -> Checksum | None:
        given = head.get(f"Checksum{algorithm}")
        if isinstance(given, str):
            value, _, parts = given.partition("-")
            if not parts:
                is_whole = "-" not in item.etag or head.get("ChecksumType") == "FULL_OBJECT"
                return Checksum.of_base64(algorithm, value) if is_whole else None
            size = self._part_size(item, int(parts))
            return None if size is None else Checksum.of_base64(algorithm, value, size)
        if algorithm != MD5 or head.get("SSECustomerAlgorithm") or self._bucket.url.bucket.endswith("--x-s3"):
            return None
        etag = _MD5_ETAG.fullmatch(item.etag)
        if etag is None or head.get("ServerSideEncryption", "") not in _PLAIN_MD5:
            return None
        size = self._part_size(item, int(etag[2])) if etag[2] else None
        return None if etag[2] and size is None else Checksum(MD5, bytes.fromhex(etag[1]), size)

    def _part_size(self, item: S3Object, parts: int) -> int | None:
        """Return the size of the parts in which the object was uploaded, None if they differ."""
        try:
            first, last = (
                self._bucket.client.head_object(Bucket=self._bucket.url.bucket, Key=item.key, PartNumber=number)
                for number in (1, parts)
            )
        except ClientError:  # not every store knows
            return None
        size = first["ContentLength"]
        rest = item.size - (parts - 1) * size
        return size if 0 < rest <= size and last["ContentLength"] == rest else None

    def _add(self, size: int) -> None:
        with self._lock:
            self._done += size


class _Known(BaseSubscriber):
    """Passes size and ETag from the listing to the transfer manager (the CRT client looks them up), and counts bytes."""

    def __init__(self, item: S3Object, add: Callable[[int], None]) -> None:
        self.arrived = 0
        self._item = item
        self._add = add

    def on_queued(self, future: Any, **_: object) -> None:
        if hasattr(future.meta, "provide_object_etag"):
            future.meta.provide_transfer_size(self._item.size)
            future.meta.provide_object_etag(self._item.etag)

    def on_progress(self, future: Any, bytes_transferred: int, **_: object) -> None:  # noqa: ARG002
        """Count. It is negative for what is requested again."""
        self.arrived += bytes_transferred
        self._add(bytes_transferred)
