"""Objects in S3: the client, the listing, and errors in one sentence.

Imports boto3, so web workers import it only for an asynchronous invocation.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import boto3
import msgspec
from boto3.exceptions import Boto3Error
from botocore import UNSIGNED
from botocore.client import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
)
from botocore.exceptions import ConnectionError as NotConnected
from s3transfer.exceptions import RetriesExceededError, S3DownloadFailedError, S3ValidationError

from lmi_handlers.core.errors import ConfigError, LMIError, LoadFailed
from lmi_handlers.model_files.s3_url import S3Url

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

MAX_OBJECTS = 10_000
MAX_CONNECTIONS = 10
"""For ranges, as in boto3: on two cores, twice as many are slower."""
_CONNECT_SECONDS = 10
_READ_SECONDS = 30
"""Of silence, after which a request is repeated."""

_DENIED = (
    "access is denied; reading needs s3:ListBucket and s3:GetObject, and kms:Decrypt if it is encrypted; writing needs "
    "s3:PutObject"
)
_EXPIRED = "the AWS credentials have expired; renew them"
_INVALID = "the AWS credentials are not valid"
_ELSEWHERE = "the bucket is in another region; set AWS_REGION"
CHANGED = "was changed or removed while it was being downloaded"
_CAUSES = {
    "NoSuchBucket": "the bucket does not exist",
    "AccessDenied": _DENIED,
    "AllAccessDisabled": _DENIED,
    "403": _DENIED,
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "InvalidAccessKeyId": _INVALID,
    "InvalidToken": _INVALID,
    "SignatureDoesNotMatch": _INVALID,
    "RequestTimeTooSkewed": "this machine's clock is wrong",
    "AuthorizationHeaderMalformed": _ELSEWHERE,
    "PermanentRedirect": _ELSEWHERE,
    "301": _ELSEWHERE,
    "InvalidObjectState": "it is archived; restore it first",
}
_CHANGES = ("404", "412", "NoSuchKey", "PreconditionFailed")
_TRANSIENT = ("RequestTimeout", "RequestTimeoutException", "SlowDown", "Throttling", "ThrottlingException", "429")
_ANONYMOUS = " (no AWS credentials were found, so the request was anonymous)"


def aws_session(region: str | None = None) -> boto3.Session:
    """Return a session in `region`, or in AWS_REGION, which boto3 does not read, or where boto3 is configured to be."""
    return boto3.Session(region_name=region or os.environ.get("AWS_REGION") or None)


class S3Object(msgspec.Struct, frozen=True):
    """An object. `name` is its path below the URL. `etag` changes with its content."""

    key: str
    name: str
    size: int
    etag: str


class Bucket:
    """The bucket of a URL. Region, endpoint and credentials come from where boto3 looks for them.

    Without credentials, requests are anonymous, as public buckets allow.
    """

    def __init__(self, url: S3Url) -> None:
        self.url = url
        with self.explained():
            session = aws_session()
            self.is_anonymous = session.get_credentials() is None
            config = Config(
                signature_version=UNSIGNED if self.is_anonymous else None,
                max_pool_connections=2 * MAX_CONNECTIONS,  # some are for questions about objects
                connect_timeout=_CONNECT_SECONDS,
                read_timeout=_READ_SECONDS,
            )
            try:
                self.client: S3Client = session.client("s3", config=config)
            except ValueError as error:  # AWS_ENDPOINT_URL is no URL, for example
                raise ConfigError(f"{url}: {_sentence(error)}") from error

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def objects(self) -> list[S3Object]:
        """Return the object that the URL names, or all objects below it. Raises `ConfigError` or `LoadFailed`."""
        url = self.url
        with self.explained():
            if url.key and not url.key.endswith("/"):
                # In the order of their names, an object comes before all whose names begin with its name.
                first = self.client.list_objects_v2(Bucket=url.bucket, Prefix=url.key, MaxKeys=1).get("Contents", [])
                if first and first[0]["Key"] == url.key and first[0]["Size"]:
                    return [S3Object(url.key, url.key.rpartition("/")[2], first[0]["Size"], first[0]["ETag"])]
            prefix = f"{url.key.rstrip('/')}/" if url.key else ""
            found: list[S3Object] = []
            for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=url.bucket, Prefix=prefix):
                found += (
                    S3Object(item["Key"], item["Key"][len(prefix) :], item["Size"], item["ETag"])
                    for item in page.get("Contents", [])
                    if not (item["Key"].endswith("/") and not item["Size"])  # a console's empty folder
                )
                if len(found) > MAX_OBJECTS:
                    raise ConfigError(f"{url} holds more than {MAX_OBJECTS:,} objects; name the folder of one model")
        if not found:
            raise ConfigError(f"{url}: there is nothing below this prefix, and no object of this name")
        return found

    def beginning_with(self) -> list[S3Object]:
        """Return all objects whose keys begin with the URL's, as batch transform jobs do. Raises like `objects`.

        Their names begin after the last slash of the URL.
        """
        url = self.url
        folder = url.key.rpartition("/")[0]
        start = len(folder) + 1 if folder else 0
        with self.explained():
            pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=url.bucket, Prefix=url.key)
            return [
                S3Object(item["Key"], item["Key"][start:], item["Size"], item["ETag"])
                for page in pages
                for item in page.get("Contents", [])
                if not item["Key"].endswith("/")
            ]

    def check_exists(self) -> None:
        """Raise `ConfigError` if the bucket does not exist. A role that may only write to it cannot know."""
        with self.explained():
            try:
                self.client.head_bucket(Bucket=self.url.bucket)
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") == "404":
                    raise ConfigError(f"{self.url}: {_CAUSES['NoSuchBucket']}") from error

    @contextlib.contextmanager
    def explained(self, key: str | None = None) -> Iterator[None]:
        """Raise the errors of boto3 as `ConfigError`, or `LoadFailed` if another try may help. `key` is the object's."""
        where = self.url if key is None else S3Url(self.url.bucket, key)
        try:
            yield
        except ClientError as error:
            raise self._explanation(where, error) from error
        except S3DownloadFailedError as error:
            raise LoadFailed(f"{where} {CHANGED}") from error
        except NoCredentialsError as error:
            raise ConfigError(f"{where}: no AWS credentials were found") from error
        except RetriesExceededError as error:
            raise LoadFailed(f"{where}: {_sentence(error.last_exception)}") from error
        except (NotConnected, HTTPClientError, IncompleteReadError, S3ValidationError) as error:
            raise LoadFailed(f"{where}: {_sentence(error)}") from error
        except (BotoCoreError, Boto3Error) as error:
            raise ConfigError(f"{where}: {_sentence(error)}") from error

    def _explanation(self, where: S3Url, error: ClientError) -> LMIError:
        details = error.response.get("Error", {})
        code = details.get("Code", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in _CHANGES:
            return LoadFailed(f"{where} {CHANGED}")
        if status >= 500 or code in _TRANSIENT:
            return LoadFailed(f"{where}: S3 answered {status} {code}")
        cause = _CAUSES.get(code) or f"S3 answered {code}: {_sentence(details.get('Message', ''))}"
        return ConfigError(f"{where}: {cause}{_ANONYMOUS if self.is_anonymous and cause == _DENIED else ''}")


def _sentence(error: object) -> str:
    return " ".join(str(error).split()) or type(error).__name__
