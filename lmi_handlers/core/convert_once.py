"""Converts files into a folder of the cache: once, completely or not at all, whoever else tries to at the same time."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from lmi_handlers.core.errors import ConfigError, ConversionRefused
from lmi_handlers.core.load_failure import load_failure


def convert_once(
    folder: Path, convert: Callable[[Path], object], report: Callable[[str], None], *, converter: str = ""
) -> Path:
    """Return `folder`, after `convert` has written its content into another one if it does not exist yet.

    Only one process converts; the others wait. If `convert` raises `ConversionRefused`, the reason is kept beside
    `folder` and raised again at once, until `converter` changes, which names what converts, with its versions. A
    conversion that fails otherwise or is killed leaves nothing behind that a later one would notice. Raises
    `ConfigError` if `folder` cannot be written, or `LoadFailed` if a retry may help.
    """
    refusal = _Refusal(folder.with_name(f"{folder.name}.refused"), converter)
    if _is_converted(folder, refusal):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f"{folder.name}.lock"), report):
            if _is_converted(folder, refusal):
                return folder
            partial = folder.with_name(f"{folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)  # left over from a killed process
            partial.mkdir()
            try:
                convert(partial)
                partial.rename(folder)
            except ConversionRefused as error:
                refusal.keep(str(error))
                raise
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        verdict = ConfigError(f"{folder.name} cannot be written to {folder.parent} (LMI_CACHE_DIR): {error}")
        raise load_failure(verdict, error) from error
    return folder


def _is_converted(folder: Path, refusal: _Refusal) -> bool:
    """Tell whether `folder` exists. Raises `ConversionRefused` if an earlier conversion was refused."""
    if folder.is_dir():
        return True
    if reason := refusal.reason():
        raise ConversionRefused(f"{reason} (found earlier; delete {refusal.file} to try again)")
    return False


class _Refusal(msgspec.Struct, frozen=True):
    """A file that says why `converter` cannot convert the model."""

    file: Path
    converter: str

    def reason(self) -> str | None:
        with contextlib.suppress(OSError, msgspec.DecodeError):  # none, or cut off
            converter, reason = msgspec.json.decode(self.file.read_bytes(), type=tuple[str, str])
            return reason if converter == self.converter else None
        return None

    def keep(self, reason: str) -> None:
        with contextlib.suppress(OSError):  # only a convenience
            self.file.write_bytes(msgspec.json.encode((self.converter, reason)))


@contextlib.contextmanager
def _locked(lock_file: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Hold an exclusive lock on `lock_file`. The system releases it however the process ends."""
    with lock_file.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another process that does the same")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
