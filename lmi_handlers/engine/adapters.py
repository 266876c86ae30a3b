"""Finds LoRA adapters: those of the model, in `adapters/` as in LMI, and those that requests name."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from lmi_handlers.config.custom_code import SCRIPT
from lmi_handlers.config.decorators import INPUT_FORMATTER, OUTPUT_FORMATTER, decorated_functions
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import ConfigError, InvalidRequest
from lmi_handlers.model_files.adapter_weights import CONFIG_NAME, check_adapter
from lmi_handlers.model_files.cache_dir import model_cache
from lmi_handlers.model_files.fetch import fetched
from lmi_handlers.model_files.pickled import check_adapter_weights
from lmi_handlers.model_files.s3_url import ARCHIVES, S3Url, check_s3_url, is_s3, parse_s3_url
from lmi_handlers.model_files.secure_mode import SecureMode, check_fetched
from lmi_handlers.model_files.unpacked import unpacked

logger = logging.getLogger(__name__)

_DEFAULT_STORE = Path("/opt/ml")
"""SageMaker unpacks adapters below it before it asks for them."""
_MAX_SOURCE = 4096
_MAX_URL = 1100
"""S3's limit for a key is 1,024 bytes."""


def find_adapters(properties: ServingProperties, model_path: Path | None) -> dict[str, Path]:
    """Return name -> folder or archive of all adapters in `adapters/`, in the model's folder and beside serving.properties.

    Empty if `option.enable_lora` is off. Raises `ConfigError` if a folder does not contain an adapter, or pickled
    weights that are not allowed, and if a name has both a folder and an archive.
    """
    if not properties.enable_lora:
        return {}
    found: dict[str, Path] = {}
    for place in (model_path, properties.model_folder):
        here: dict[str, Path] = {}
        for path in () if place is None else sorted((place / "adapters").glob("*")):
            name = _own_name(path)
            if name is None:
                continue
            if name in here:
                raise ConfigError(f"option.enable_lora: {here[name]} and {path} are two adapters of one name")
            if path.is_dir():
                _check_folder(path, properties, name=f"option.enable_lora: {path}")
            here[name] = path
        found |= here
    return found


@contextlib.contextmanager
def own_adapter(path: Path, properties: ServingProperties) -> Iterator[Path]:
    """Yield the folder of an adapter that `find_adapters` has found, unpacked if it is an archive.

    It stays as it is until the block ends. Raises `ConfigError`, or `LoadFailed` if another try may help.
    """
    if path.is_dir():
        yield path
        return
    with unpacked(path, model_cache(properties, os.environ)) as folder:
        _check_folder(folder, properties, name=f"option.enable_lora: {path}")
        yield folder


class AdapterSources:
    """The places from which requests may load adapters: `option.adapter_store`, or the model's own and SageMaker's.

    Raises `ConfigError` if the option has a URL that is malformed.
    """

    def __init__(self, properties: ServingProperties, model_path: Path | None) -> None:
        self._properties = properties
        own = properties.model_folder
        self._scripts = {
            script.resolve() for place in (own, model_path) if place for script in place.glob(f"adapters/*/{SCRIPT}")
        }
        if properties.adapter_store is None:
            self.stores = Stores(tuple(f.resolve() for f in (own, model_path, _DEFAULT_STORE) if f is not None))
            return
        texts = [text.strip() for text in properties.adapter_store.split(",")]
        urls = [text for text in texts if is_s3(text)]
        for url in urls:
            check_s3_url(url)
        folders = tuple(Path(text).resolve() for text in texts if not is_s3(text))
        self.stores = Stores(folders, tuple(map(parse_s3_url, urls)))

    def locate(self, source: str) -> str:
        """Return a source as code of the model's own gets it: a path without links, or a URL. It opens the source itself.

        Raises `InvalidRequest` if the source is not one that may be loaded.
        """
        if is_s3(source):
            return str(s3_source(source, self.stores))
        path = local_source(source, self.stores)
        if (secure_mode := SecureMode.from_environ(os.environ)) is not None:
            if not path.is_dir():
                raise InvalidRequest("must be a folder in secure mode, because archives are not checked", field="src")
            try:
                secure_mode.check_model(path)
            except ConfigError as error:
                raise InvalidRequest(str(error), field="src") from error
        return str(path)

    @contextlib.contextmanager
    def open(self, source: str, earlier: str = "") -> Iterator[Path]:
        """Yield the folder of the adapter at `source`, which stays as it is until the block ends.

        This is the only place where an engine's source becomes a folder. `earlier` is the folder that it became when the adapter
        was loaded first, perhaps by another engine. If that is in the cache, it is used again, and S3 is not asked.

        Raises `InvalidRequest` if the source is not one that may be loaded, `LoadFailed` if another try may help.
        """
        with contextlib.ExitStack() as opening:
            try:
                cache = model_cache(self._properties, os.environ)
                kept = cache.hold(Path(earlier)) if earlier else None
                if kept is not None:
                    opening.enter_context(kept)
                    folder = Path(earlier)
                elif is_s3(source):
                    url = str(s3_source(source, self.stores))
                    folder = opening.enter_context(fetched(url, cache, report=_log, progress=_ignore))
                else:
                    folder = local_source(source, self.stores)
                    if folder.is_file():
                        folder = opening.enter_context(unpacked(folder, cache))
                _check_folder(folder, self._properties, name=repr(source[:100]))
                self._check_formatters(folder)
                check_fetched(folder)
            except ConfigError as error:
                raise InvalidRequest(str(error), field="src") from error
            yield folder

    def _check_formatters(self, folder: Path) -> None:
        """Raise `ConfigError` if the adapter has formatters that the server has not read when it started."""
        script = folder / SCRIPT
        if (
            script.is_file()
            and script not in self._scripts
            and not self._properties.adapter_formatters
            and {INPUT_FORMATTER, OUTPUT_FORMATTER} & {*decorated_functions(script)}
        ):
            raise ConfigError(
                f"the adapter has formatters in {SCRIPT}, which are read when the server starts: put it into adapters/ beside "
                "serving.properties and restart the server, set option.adapter_formatters=true, or remove the file"
            )


class Stores(NamedTuple):
    """The allowed places of adapters: these folders, and below these URLs."""

    folders: tuple[Path, ...]
    urls: tuple[S3Url, ...] = ()

    def __str__(self) -> str:
        return ", ".join(map(str, (*self.folders, *self.urls)))

    def contain(self, path: Path) -> bool:
        """Tell whether `path`, which has no links, is in one of the folders."""
        return any(path.is_relative_to(folder) for folder in self.folders)


def s3_source(source: str, stores: Stores) -> S3Url:
    """Return the URL of an adapter. Raises `InvalidRequest` if it is not below one of the stores' URLs, or malformed."""
    if len(source) > _MAX_URL:
        raise InvalidRequest(f"must have at most {_MAX_URL} characters, got {source[:100]!r}", field="src")
    try:
        url = parse_s3_url(source)
    except ConfigError as error:
        raise InvalidRequest(str(error), field="src") from error
    for bucket, prefix in stores.urls:
        folder = f"{prefix.rstrip('/')}/" if prefix else ""
        if url.bucket == bucket and f"{url.key.rstrip('/')}/".startswith(folder) and url.key:
            return url
    raise InvalidRequest(f"{source[:100]!r} is outside of option.adapter_store ({stores})", field="src")


def local_source(source: str, stores: Stores) -> Path:
    """Return the folder or the archive of an adapter. `source` is a path or a `file:` URL.

    Relative paths are below the first folder of `stores`. Raises `InvalidRequest` if the path or a file in it is not in
    one of the folders, wherever links lead, or not there.
    """
    url = urlsplit(source[:_MAX_SOURCE])
    text = url.path if url.scheme == "file" and url.netloc in ("", "localhost") else source
    if not 0 < len(text) < _MAX_SOURCE or not text.isprintable() or "://" in text:
        raise InvalidRequest(
            f"must be a folder or an archive of this machine, or in S3, got {source[:100]!r}", field="src"
        )
    try:
        path = (stores.folders[0] / text if stores.folders else Path(text)).resolve()
        is_inside = stores.contain(path)
        is_archive = is_inside and path.is_file() and path.name.endswith(ARCHIVES)
        files = list(path.iterdir()) if is_inside and not is_archive else ()
        is_inside = is_inside and all(stores.contain(file.resolve()) for file in files)
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise InvalidRequest(f"{source[:100]!r} is not a folder that can be read", field="src") from error
    if not is_inside:
        raise InvalidRequest(f"{source[:100]!r} is outside of option.adapter_store ({stores})", field="src")
    return path


def _own_name(path: Path) -> str | None:
    """Return the name of the adapter at `path`. None if it is neither a folder nor an archive, or hidden."""
    if path.name.startswith("."):
        return None
    if path.is_dir():
        return path.name
    return next((path.name.removesuffix(end) for end in ARCHIVES if path.name.endswith(end) and path.is_file()), None)


def _check_folder(folder: Path, properties: ServingProperties, *, name: object = None) -> None:
    if not (folder / CONFIG_NAME).is_file():
        raise ConfigError(f"{name or folder} is not an adapter: it has no {CONFIG_NAME}")
    check_adapter_weights(folder, properties)
    check_adapter(folder, name=f"{name or folder}")


def _log(phase: str) -> None:
    logger.info("adapter", extra={"phase": phase})


def _ignore(*_: int) -> None:
    """The log has no figures: adapters are small."""
