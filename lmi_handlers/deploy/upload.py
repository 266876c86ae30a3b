"""Copies a model directory to S3, into a folder that holds nothing else, and deletes such a copy."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.deploy.aws import Aws
from lmi_handlers.deploy.calls import Call
from lmi_handlers.model_files.s3_url import S3Url, parse_s3_url


def files_to_upload(directory: Path) -> dict[str, Path]:
    """Return relative name -> file, without hidden files and Python's caches. Raises `ConfigError`.

    Links are followed, as in the hub's cache.
    """
    if not directory.is_dir():
        raise ConfigError(f"--model-dir {directory} is not a directory")
    found = {}
    for folder, folders, names in os.walk(directory, onerror=_unreadable, followlinks=True):
        _check_link(Path(folder), directory)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        for name in sorted(names):
            file = Path(folder, name)
            if not name.startswith("."):
                if not file.is_file():
                    raise ConfigError(f"{file} is neither a file nor a link to one, so it cannot be uploaded")
                found[file.relative_to(directory).as_posix()] = file
    if not found:
        raise ConfigError(f"--model-dir {directory} is empty")
    return found


def _unreadable(error: OSError) -> None:
    raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error


def _check_link(folder: Path, directory: Path) -> None:
    """Raise `ConfigError` if a folder is a link to one that it is in: following such a link would not end."""
    if folder == directory or not folder.is_symlink():
        return
    target = folder.resolve()
    parents = [directory, *(directory / parent for parent in folder.relative_to(directory).parents)]
    if any(parent.resolve().is_relative_to(target) for parent in parents):
        raise ConfigError(f"{folder} is a link to {target}, which it is in itself")


class Upload(msgspec.Struct, frozen=True):
    """A folder in S3, and the calls that fill it."""

    folder: S3Url
    calls: list[Call]


def plan_upload(directory: Path, destination: S3Url, name: str) -> Upload:
    """Return the upload to a new folder below `destination`. Raises `ConfigError`.

    The folder's name depends on the names, sizes and times of the files, so a changed model has a folder of its own, and
    an endpoint that runs keeps its files.
    """
    files = files_to_upload(directory)
    digest = hashlib.sha256()
    for relative, file in files.items():
        status = file.stat()
        digest.update(f"{relative}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    prefix = f"{destination.key.rstrip('/')}/" if destination.key else ""
    folder = S3Url(destination.bucket, f"{prefix}{name}/{digest.hexdigest()[:8]}/")
    calls = [
        Call("s3", "put_object", {"Bucket": folder.bucket, "Key": f"{folder.key}{relative}"}, file=str(file))
        for relative, file in files.items()
    ]
    return Upload(folder, calls)


def missing(aws: Aws, upload: Upload) -> Iterator[Call]:
    """Yield the calls that an earlier run has not completed. Raises `Refused`."""
    there = {item["Key"]: item["Size"] for item in _objects(aws, upload.folder)}
    for call in upload.calls:
        if there.get(call.parameters["Key"]) != Path(str(call.file)).stat().st_size:
            yield call


def delete_upload(aws: Aws, url: str) -> None:
    """Delete a folder that `lmi deploy` has filled. Raises `Refused`."""
    folder = parse_s3_url(url)
    click.echo(f"DeleteObject {folder}")
    for item in list(_objects(aws, folder)):
        aws(Call("s3", "delete_object", {"Bucket": folder.bucket, "Key": item["Key"]}))


def _objects(aws: Aws, folder: S3Url) -> Iterator[dict[str, object]]:
    parameters = {"Bucket": folder.bucket, "Prefix": folder.key}
    while True:
        answer = aws(Call("s3", "list_objects_v2", parameters))
        yield from answer.get("Contents", [])
        if not answer.get("IsTruncated"):
            return
        parameters["ContinuationToken"] = answer["NextContinuationToken"]
