"""Copies a model directory to S3, into a folder that holds nothing else, and deletes such a copy."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.terminal import show
from lmi_handlers.model_files.s3_url import S3Url
from lmi_handlers.tools.client.aws import Aws
from lmi_handlers.tools.client.calls import AwsCall
from lmi_handlers.tools.client.inputs import target_outside

_UPLOADED_FOR = "lmi-deployment"
"""Metadata of each object that an upload makes. Its value is the deployment's name and the folder's digest."""


def files_to_upload(directory: Path, *, follows_links: bool) -> dict[str, Path]:
    """Return relative name -> file, without hidden files and Python's caches. Raises `ConfigError`.

    Links within the directory are followed, and those out of it, as in the hub's cache, only if `follows_links`.
    """
    if not directory.is_dir():
        raise ConfigError(f"--model-dir {directory} is not a directory")
    found = {}
    for folder, folders, names in os.walk(directory, onerror=_unreadable, followlinks=True):
        _check_link(Path(folder), directory)
        if not follows_links:
            _check_inside(Path(folder), directory)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        for name in sorted(names):
            file = Path(folder, name)
            if not name.startswith("."):
                if not file.is_file():
                    raise ConfigError(f"{file} is neither a file nor a link to one, so it cannot be uploaded")
                if not follows_links:
                    _check_inside(file, directory)
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


def _check_inside(path: Path, directory: Path) -> None:
    """Raise `ConfigError` for a link out of the directory: who made it may not be allowed to read what it leads to."""
    if path != directory and (target := target_outside(path, directory)) is not None:
        raise ConfigError(
            f"{path} is a link to {target}, which is not in {directory}: add --follow-links to upload what it leads to"
        )


class Upload(msgspec.Struct, frozen=True):
    """A folder in S3, the calls that fill it, and the size of all files in bytes."""

    folder: S3Url
    calls: list[AwsCall]
    size: int


def plan_upload(directory: Path, destination: S3Url, name: str, *, follows_links: bool = False) -> Upload:
    """Return the upload to a new folder below `destination`. Raises `ConfigError`.

    The folder's name depends on the names, sizes and times of the files, so a changed model has a folder of its own, and
    an endpoint that runs keeps its files.
    """
    files = files_to_upload(directory, follows_links=follows_links)
    digest = hashlib.sha256()
    size = 0
    for relative, file in files.items():
        status = file.stat()
        size += status.st_size
        digest.update(f"{relative}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    prefix = f"{destination.key.rstrip('/')}/" if destination.key else ""
    version = digest.hexdigest()[:8]
    folder = S3Url(destination.bucket, f"{prefix}{name}/{version}/")
    made = {"Metadata": {_UPLOADED_FOR: f"{name}/{version}"}}
    calls = [
        AwsCall("s3", "put_object", {"Bucket": folder.bucket, "Key": f"{folder.key}{relative}", **made}, file=str(file))
        for relative, file in files.items()
    ]
    return Upload(folder, calls, size)


def missing(aws: Aws, upload: Upload) -> Iterator[AwsCall]:
    """Yield the calls that an earlier run has not completed. Raises `CallRefused`."""
    there = {item["Key"]: item["Size"] for item in _objects(aws, upload.folder)}
    for call in upload.calls:
        if there.get(call.parameters["Key"]) != Path(str(call.file)).stat().st_size:
            yield call


def delete_upload(aws: Aws, url: str, name: str) -> None:
    """Delete the objects that uploads for the deployment `name` have put into a folder, and no others. Raises `CallRefused`.

    `url` comes from a tag, which others may have set to anything. So the folder must have the name that an upload gives
    it, and each object the metadata.
    """
    found = re.fullmatch(rf"s3://([^/]+)/((?:.*/)?({re.escape(name)}/[0-9a-f]{{8}})/)", url)
    if found is None:
        show(f"{url} is kept: lmi deploy does not upload to such a folder")
        return
    bucket, key, version = found.groups()
    folder, others = S3Url(bucket, key), 0
    show(f"DeleteObject {folder}")
    for item in list(_objects(aws, folder)):
        where = {"Bucket": folder.bucket, "Key": item["Key"]}
        if aws(AwsCall("s3", "head_object", where)).get("Metadata", {}).get(_UPLOADED_FOR) == version:
            aws(AwsCall("s3", "delete_object", where))
        else:
            others += 1
    if others:
        show(f"{others} objects in {folder} are kept: they were not uploaded by lmi deploy")


def _objects(aws: Aws, folder: S3Url) -> Iterator[dict[str, object]]:
    parameters = {"Bucket": folder.bucket, "Prefix": folder.key}
    while True:
        answer = aws(AwsCall("s3", "list_objects_v2", parameters))
        yield from answer.get("Contents", [])
        if not answer.get("IsTruncated"):
            return
        parameters["ContinuationToken"] = answer["NextContinuationToken"]
