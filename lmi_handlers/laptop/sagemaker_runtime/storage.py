"""The folders and the inputs that asynchronous invocations name."""

from __future__ import annotations

import functools
import re
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.install import check_installed
from lmi_handlers.model_files.s3_url import S3Url, check_s3_url, is_s3, parse_s3_url
from lmi_handlers.model_files.storage import Folder, LocalFolder, S3Folder

if TYPE_CHECKING:
    from lmi_handlers.model_files.s3 import Bucket

_FILE = "file://"
_MAX_BUCKETS = 8
"""Buckets to which connections are kept. Clients name them."""
_HTTPS = re.compile(
    r"https://(?:(?P<bucket>[a-z0-9.-]+)\.)?s3[.-](?:[a-z0-9-]+\.)?amazonaws\.com(?:\.cn)?/(?P<path>.+)", re.DOTALL
)


def parse_folder(option: str, text: str) -> Folder:
    """Return the folder that `text`, the value of `option`, names. Raises `ConfigError`."""
    if is_s3(text):
        check_installed("boto3", extra="aws", needed_by=f"{option}={text}")
        return S3Folder(parse_s3_url(text))
    path = Path(urllib.parse.unquote(text.removeprefix(_FILE)))
    if not text.startswith(_FILE) or not path.is_absolute():
        raise ConfigError(f"{option} has value {text!r}: must be s3://bucket/prefix or file:///absolute/folder")
    return LocalFolder(path)


def parse_input(text: str) -> S3Url | None:
    """Return the object that an input location names, or None if it is not in S3.

    Only S3 is read: not the files of this machine, nor what else is in its network.
    """
    try:
        if is_s3(text):
            url = parse_s3_url(text)
        elif (match := _HTTPS.fullmatch(text)) is not None:
            path = urllib.parse.unquote(match["path"])
            url = parse_s3_url(f"s3://{path}" if match["bucket"] is None else f"s3://{match['bucket']}/{path}")
        else:
            return None
    except ConfigError:
        return None
    return url if url.key else None


def read_input(url: S3Url, limit: int) -> bytes:
    """Return the content of an object. Raises `ConfigError` or `LoadFailed`, also if it has more than `limit` bytes."""
    bucket = _bucket(url.bucket)
    with bucket.explained(url.key):
        try:
            answer = bucket.client.get_object(Bucket=url.bucket, Key=url.key)
        except bucket.client.exceptions.NoSuchKey:
            raise ConfigError(f"{url} does not exist") from None
        if (size := answer["ContentLength"]) > limit:
            answer["Body"].close()
            raise ConfigError(f"{url} has {size} bytes; an input may have at most {limit} (max_request_size)")
        return answer["Body"].read()


@functools.lru_cache(_MAX_BUCKETS)
def _bucket(name: str) -> Bucket:
    """Return a bucket, whose connections are kept for the next input."""
    check_s3_url(f"s3://{name}/")
    from lmi_handlers.model_files.s3 import Bucket

    return Bucket(S3Url(name, ""))
