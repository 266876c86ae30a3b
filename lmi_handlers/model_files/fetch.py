"""Makes a model or an adapter in S3 a local folder or file, for as long as it is used."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lmi_handlers.config.options import ServingProperties
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.load_phase import LoadPhase
from lmi_handlers.model_files.cache_dir import model_cache
from lmi_handlers.model_files.model_cache import ModelCache, in_gb
from lmi_handlers.model_files.names import check_names
from lmi_handlers.model_files.needed import has_text_files, is_weights, needed
from lmi_handlers.model_files.s3_url import S3Url, is_s3, parse_s3_url
from lmi_handlers.model_files.secure_mode import check_fetched
from lmi_handlers.model_files.unpacked import content_of, unpack_entry

if TYPE_CHECKING:
    from lmi_handlers.model_files.s3 import Bucket, S3Object

_FORMAT = 1
"""Part of every cache key. Increase it when other files are chosen, or archives are unpacked differently."""


class Selected(msgspec.Struct, frozen=True):
    """The objects to download. `key` is the name of the cache entry; it changes with any of the objects."""

    url: S3Url
    objects: tuple[S3Object, ...]
    key: str

    @property
    def is_file(self) -> bool:
        """True if the URL names one object."""
        return [item.key for item in self.objects] == [self.url.key]

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(item.size for item in self.objects)

    def __str__(self) -> str:
        files = f"{len(self.objects)} files" if len(self.objects) > 1 else "1 file"
        return f"{self.url} ({files}, {in_gb(self.size)})"


def select(bucket: Bucket, *, weights: bool = True) -> Selected:
    """List the URL of `bucket` and choose what a model needs, as `needed` does.

    Raises `ConfigError`, or `LoadFailed` if another try may help.
    """
    url = bucket.url
    objects = bucket.objects()
    check_names((item.name for item in objects), str(url))
    if [item.key for item in objects] != [url.key]:  # a folder
        chosen = set(needed([item.name for item in objects], weights=weights))
        objects = [item for item in objects if item.name in chosen]
        if weights or not has_text_files([item.name for item in objects]):
            _check_weights(url, [item.name for item in objects])
    listing = (_FORMAT, url.bucket, url.key, sorted((item.key, item.size, item.etag) for item in objects))
    digest = hashlib.sha256(msgspec.json.encode(listing)).hexdigest()[:16]
    name = url.key.rstrip("/").rpartition("/")[2] or url.bucket
    return Selected(url, tuple(objects), f"{name[:64]}-{digest}")


def preview(text: str, cache: ModelCache, *, weights: bool = True) -> tuple[str, bool]:
    """Say what `fetched` would download, and whether that is certain. Downloads nothing.

    Without credentials, the bucket may refuse what it allows the server: then the reason is returned, and False. Raises
    `ConfigError` or `LoadFailed`.
    """
    from lmi_handlers.model_files.s3 import Bucket

    with contextlib.closing(Bucket(parse_s3_url(text))) as bucket:
        try:
            selected = select(bucket, weights=weights)
        except ConfigError as error:
            if not bucket.is_anonymous:
                raise
            return str(error), False
    where = "in the cache" if selected.key in cache else "to be downloaded"
    return f"{selected} {'are' if len(selected.objects) > 1 else 'is'} {where}", True


def _check_weights(url: S3Url, names: list[str]) -> None:
    found = [name for name in names if is_weights(name)]
    if not found:
        listed = ", ".join(sorted(names)[:5]) or "nothing that a model needs"
        raise ConfigError(f"{url} holds no weights (*.safetensors, pytorch_model*.bin or one .gguf file), but {listed}")
    alternatives = [name for name in found if name.endswith(".gguf") and "/" not in name]
    if len(alternatives) > 1:
        raise ConfigError(
            f"{url} holds several GGUF files ({', '.join(alternatives[:5])}); name one, such as "
            f"{str(url).rstrip('/')}/{alternatives[0]}"
        )


@contextlib.contextmanager
def local_model(
    properties: ServingProperties,
    report: Callable[[str], None],
    progress: Callable[[int, int], None],
    *,
    weights: bool = True,
) -> Iterator[ServingProperties]:
    """Yield the properties with a local path in place of a model in S3, which stays in the cache until the block ends.

    The arguments and errors are those of `fetched`.
    """
    if not is_s3(properties.model_id):
        yield properties
        return
    report(LoadPhase.MODEL)
    cache = model_cache(properties, os.environ)
    with fetched(str(properties.model_id), cache, report=report, progress=progress, weights=weights) as path:
        yield msgspec.structs.replace(properties, model_id=str(path), model_name=properties.name)


@contextlib.contextmanager
def fetched(
    text: str,
    cache: ModelCache,
    *,
    report: Callable[[str], None],
    progress: Callable[[int, int], None],
    weights: bool = True,
) -> Iterator[Path]:
    """Yield the folder, or the `.gguf` file, that the S3 URL `text` names, downloaded if necessary.

    It stays as it is until the block ends. `report` is called with short phases, `progress` with the bytes that have
    arrived and those of the whole download. Without `weights`, these are left out. Raises `ConfigError`, or `LoadFailed`
    if another try may help.
    """
    from lmi_handlers.model_files.s3 import Bucket
    from lmi_handlers.model_files.s3_download import Download

    def fill(partial: Path) -> Path:
        report(f"downloading {selected}")
        download = Download(bucket, selected.objects, partial)
        cache.make_room(download.missing, selected.key)
        download.run(progress)
        if not selected.url.is_archive:
            return download.files
        report(f"unpacking {selected}")
        archive = download.files / selected.objects[0].name
        name, size = str(selected.url), selected.size
        try:
            return unpack_entry(
                archive, partial, cache, selected.key, name=name, progress=lambda done: progress(done, size)
            )
        except ConfigError:  # the next try would be refused as well
            archive.unlink()
            raise

    has_waited = False

    def wait(done: int) -> None:
        nonlocal has_waited
        if not has_waited:
            report(f"waiting for another process to download {selected}")
        has_waited = True
        progress(done, selected.size)

    report(f"listing {text}")
    with contextlib.ExitStack() as stack:
        with contextlib.closing(Bucket(parse_s3_url(text))) as bucket:
            selected = select(bucket, weights=weights)
            folder = stack.enter_context(cache.use(selected.key, fill, wait))
        check_fetched(folder)
        yield _content(folder, selected)


def _content(folder: Path, selected: Selected) -> Path:
    """Return what the URL names: a file, what an archive holds, or the whole entry."""
    if selected.url.is_archive:
        return content_of(folder)
    return next(folder.iterdir()) if selected.is_file else folder
