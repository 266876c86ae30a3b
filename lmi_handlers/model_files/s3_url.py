"""`s3://bucket/key`, as options name models and adapters."""

from __future__ import annotations

import re
from typing import NamedTuple

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.install import check_installed
from lmi_handlers.core.redaction import redacted

_SCHEME = "s3://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")  # also an access point's alias
ARCHIVES = (".tar.gz", ".tgz")


class S3Url(NamedTuple):
    """An object, or all objects below a prefix. The prefix may end with a slash; all objects of a bucket have ""."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{_SCHEME}{self.bucket}/{self.key}"

    @property
    def is_archive(self) -> bool:
        return self.key.endswith(ARCHIVES)


def is_s3(text: str | None) -> bool:
    """Tell whether `text` is meant as an S3 URL."""
    return text is not None and text.lower().startswith(_SCHEME)


def parse_s3_url(text: str) -> S3Url:
    """Parse a URL for which `is_s3` is true. Raises `ConfigError`."""
    bucket, _, key = text[len(_SCHEME) :].partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise ConfigError(f"{redacted(text)} does not name a bucket; an S3 URL is s3://bucket/folder/")
    if key.startswith("/") or not key.isprintable():
        raise ConfigError(f"{redacted(text)} is not an S3 URL: an empty name or a control character follows the bucket")
    return S3Url(bucket, key)


def check_s3_url(text: str) -> None:
    """Raise `ConfigError` if the URL is malformed or the library that downloads from S3 is missing."""
    url = parse_s3_url(text)
    check_installed("boto3", extra="aws", needed_by=f"{url}: a download from S3")
