"""Sources of models: sub-directories of the model store, archives in it, and S3."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lmi_handlers.config.properties import FILE_NAME, ServingProperties
from lmi_handlers.config.store_settings import StoreSettings
from lmi_handlers.core.errors import InvalidRequest, ModelNotFound
from lmi_handlers.core.redaction import redacted
from lmi_handlers.model_files.cache_dir import model_cache
from lmi_handlers.model_files.fetch import fetched
from lmi_handlers.model_files.locate import has_model_files
from lmi_handlers.model_files.s3_url import is_s3, parse_s3_url
from lmi_handlers.model_files.unpacked import unpacked
from lmi_handlers.models.registry import check_model_name

_LONGEST_URL = 2048
_ARCHIVE = ".tar.gz"

logger = logging.getLogger(__name__)


def models_at_start(store: StoreSettings) -> Iterator[tuple[str, str]]:
    """Yield the names and URLs of the models to load at the start."""
    if store.load_models is None:
        yield from models_in(store)
    else:
        yield from _with_valid_names((name or name_of(url), url) for name, url in store.load_models)


def models_in(store: StoreSettings) -> Iterator[tuple[str, str]]:
    """Yield the names and URLs of the models that the store names, or else of those in its directory. Raises `OSError`."""
    if store.load_models:
        yield from models_at_start(store)
    else:
        directory = Path(store.directory)
        yield from _with_valid_names((path.name, str(path)) for path in sorted(directory.iterdir()) if _is_model(path))


def _with_valid_names(found: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for name, url in found:
        try:
            check_model_name(name)
        except InvalidRequest as error:
            logger.warning("a model is left out", extra={"url": url, "cause": str(error)})
            continue
        yield name, url


def _is_model(path: Path) -> bool:
    if path.name.startswith(".") or not path.is_dir():
        return False
    return (path / FILE_NAME).is_file() or (path / "model.py").is_file() or has_model_files(path)


def name_of(url: str) -> str:
    """Return the name of a model that was loaded without one, as DJL does: the last part of its URL."""
    last = urlsplit(url).path.rstrip("/").rpartition("/")[2] if "://" in url else url.rstrip("/").rpartition("/")[2]
    return last.removesuffix(_ARCHIVE)


@contextlib.contextmanager
def opened(url: str, store: StoreSettings, *, is_operators: bool) -> Iterator[Path]:
    """Yield the directory of the model at `url`, which stays as it is until the block ends.

    What is in S3 or in an archive is put into the cache. URLs that the operator has not given (`is_operators`) must not
    leave the store, except for its `sources`.
    Raises `ModelNotFound`, `ConfigError` for a hostile archive, and `LoadFailed` if another try may help.
    """
    if len(url) > _LONGEST_URL or not url.isprintable():
        raise ModelNotFound(
            f"Invalid model url: {url[:64]!r}: must be at most {_LONGEST_URL} printable characters",
            code="invalid_model_url",
        )
    cache = model_cache(ServingProperties(), os.environ)
    if is_s3(url):
        if not is_operators and not str(parse_s3_url(url)).startswith(store.sources):
            raise ModelNotFound(
                f"Invalid model url: {redacted(url)} is not in the model store or in LMI_MODEL_SOURCES",
                code="invalid_model_url",
            )
        with fetched(url, cache, report=_report, progress=lambda _done, _total: None) as path:
            yield path if path.is_dir() else path.parent
        return
    path = _local_path(url, store, is_operators=is_operators)
    if path.is_dir():
        yield path
        return
    if not path.name.endswith(_ARCHIVE):
        raise ModelNotFound(
            f"Invalid model url: {url} is neither a directory nor a {_ARCHIVE} file", code="invalid_model_url"
        )
    with unpacked(path, cache) as folder:
        yield folder


def _local_path(url: str, store: StoreSettings, *, is_operators: bool) -> Path:
    if "://" in url:
        parts = urlsplit(url)
        if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
            raise ModelNotFound(f"Invalid model url: {url}: must be a path, file:// or s3://", code="invalid_model_url")
        url = unquote(parts.path)
    root = Path(store.directory)
    try:
        path = (root / url).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        raise ModelNotFound(f"Invalid model url: {url}", code="invalid_model_url") from None
    if not (is_operators or path.is_relative_to(root)):
        raise ModelNotFound(f"Invalid model url: {url} is not in the model store", code="invalid_model_url")
    return path


def _report(text: str) -> None:
    logger.info("fetching a model", extra={"detail": text})
