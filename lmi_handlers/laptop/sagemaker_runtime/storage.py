"""Where asynchronous invocations read their input from and write their answers to: S3, or a folder of this machine.

boto3 is imported when it is first needed, because it takes half a second and most servers never use it.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import urllib.parse
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.files import write_whole
from lmi_handlers.core.install import install_command
from lmi_handlers.model_files.s3_url import S3Url, is_s3, parse_s3_url

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_FILE = "file://"
_CONNECT_SECONDS, _READ_SECONDS = 10, 30
_HTTPS = re.compile(
    r"https://(?:(?P<bucket>[a-z0-9.-]+)\.)?s3[.-](?:[a-z0-9-]+\.)?amazonaws\.com(?:\.cn)?/(?P<path>.+)", re.DOTALL
)


class StorageError(Exception):
    """An object could not be read or written."""


class Folder(ABC):
    """A folder for answers."""

    @abstractmethod
    def url(self, name: str) -> str:
        """Return the URL of the object `name`, a relative path without `..`."""

    @abstractmethod
    def write(self, name: str, data: bytes, content_type: str) -> None:
        """Write an object at once: nobody reads half of it. Raises `StorageError`."""


class S3Folder(Folder):
    """All objects below a prefix in S3."""

    def __init__(self, prefix: S3Url) -> None:
        self._prefix = prefix

    def url(self, name: str) -> str:
        return str(self._object(name))

    def write(self, name: str, data: bytes, content_type: str) -> None:
        place = self._object(name)
        try:
            _client().put_object(Bucket=place.bucket, Key=place.key, Body=data, ContentType=content_type)
        except _errors() as error:
            raise StorageError(f"{place} could not be written: {error}") from error

    def _object(self, name: str) -> S3Url:
        prefix = self._prefix.key.rstrip("/")
        return S3Url(self._prefix.bucket, f"{prefix}/{name}" if prefix else name)


class LocalFolder(Folder):
    """A folder of this machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def url(self, name: str) -> str:
        return (self._directory / name).as_uri()

    def write(self, name: str, data: bytes, content_type: str) -> None:  # noqa: ARG002  files have no type
        path = self._directory / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, data)
        except OSError as error:
            raise StorageError(f"{path} could not be written: {error.strerror}") from error


def parse_folder(option: str, text: str) -> Folder:
    """Return the folder that `text`, the value of `option`, names. Raises `ConfigError`."""
    if is_s3(text):
        if importlib.util.find_spec("boto3") is None:
            raise ConfigError(f"{option}={text} needs boto3: {install_command('lmi-handlers[aws]')}")
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
    """Return the content of an object. Raises `StorageError`, also if it has more than `limit` bytes."""
    try:
        answer = _client().get_object(Bucket=url.bucket, Key=url.key)
        if (size := answer["ContentLength"]) > limit:
            answer["Body"].close()
            raise StorageError(f"{url} has {size} bytes; an input may have at most {limit} (max_request_size)")
        return answer["Body"].read()
    except _errors() as error:
        raise StorageError(f"{url} could not be read: {error}") from error


@functools.cache
def _client() -> S3Client:
    """Return the client, with region, endpoint and credentials from where boto3 looks for them."""
    import boto3
    from botocore.client import Config

    session = boto3.Session()
    region = session.region_name or os.environ.get("AWS_REGION")  # boto3 reads AWS_DEFAULT_REGION only
    config = Config(connect_timeout=_CONNECT_SECONDS, read_timeout=_READ_SECONDS, retries={"total_max_attempts": 3})
    return session.client("s3", region_name=region, config=config)


def _errors() -> tuple[type[Exception], ...]:
    try:
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:  # then boto3 is missing, too
        return (ImportError,)
    return (BotoCoreError, ClientError, ValueError)
