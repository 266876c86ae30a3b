"""Loads and unloads adapters while the engine serves, on a thread of its own. Only the last step is the loop's."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from backends.base import Backend
from lmi_handlers.core.errors import AdapterExists, InvalidRequest, LMIError, LoadFailed, RequestFailed
from lmi_handlers.engine.adapter_formatters import AdapterFormatters
from lmi_handlers.engine.adapter_registry import (
    MAX_ADAPTERS,
    Adapters,
    RegisteredAdapter,
    changing,
    check_name,
    read_registry,
)
from lmi_handlers.engine.loop import NOBODY, EngineLoop, Inbox, LoopCall
from lmi_handlers.engine.messages import AdapterChanged, LoadAdapter, UnloadAdapter, Worker, failed
from lmi_handlers.model_files.weights_digest import adapter_digest

logger = logging.getLogger(__name__)

_LOOK_AGAIN = 0.1
"""Seconds between two looks at whether an unloaded adapter is still in use."""
_TRY_AGAIN = 10.0
"""Seconds until a registered adapter is loaded again that could not be, for example because S3 does not answer."""

Open = Callable[[str, str], contextlib.AbstractContextManager[Path]]
"""Opens the folder of a source. The second argument is the folder that the source was before, or ""."""


class AdapterManager:
    """The adapters of `backend`. Changes are made one after the other, in order of arrival.

    A change is written to the registry in `runtime_dir`, announced to all web workers and then answered, even if nobody
    waits for the answer any more. `announce` gets the `digests`, and returns once the web workers know. `open` raises
    `InvalidRequest` for a wrong source. `open_own` opens the model's own adapters, which may be outside of the places that
    requests may name.
    An adapter's folder stays open as long as the adapter is loaded. `adapters` are those that the backend has loaded
    already. `reserved` are names that stand for the model itself. `formatters` loads those that adapters bring, if they may.
    """

    def __init__(
        self,
        backend: Backend,
        inbox: Inbox,
        announce: Callable[[Mapping[str, str]], None],
        *,
        runtime_dir: Path,
        open: Open,  # noqa: A002  nothing here opens files
        open_own: Callable[[Path], contextlib.AbstractContextManager[Path]],
        adapters: Adapters,
        reserved: Collection[str] = (),
        formatters: AdapterFormatters | None = None,
    ) -> None:
        self._backend = backend
        self._inbox = inbox
        self._announce = announce
        self._runtime_dir = runtime_dir
        self._open = open
        self._open_own = open_own
        self._folders: dict[str, contextlib.ExitStack] = {}
        self._adapters = dict(adapters)
        self._digests: Mapping[str, str] = {
            name: adapter_digest(Path(adapter.folder)) for name, adapter in adapters.items()
        }
        self._reserved = reserved
        self._formatters = formatters
        self._seen: Adapters | None = None
        self._try_again_at = math.inf
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="adapters")

    @property
    def digests(self) -> Mapping[str, str]:
        """The digest of each adapter's files, by the names that requests may use."""
        return self._digests

    def restore(self) -> None:
        """Load what was registered before this engine was started, and is not loaded yet. Call it before the loop runs.

        An adapter that cannot be loaded any more is dropped, with a line in the log. The model serves without it. If
        another try may help, `follow` tries again, and the model does not wait.
        """
        registered = read_registry(self._runtime_dir) or {}
        lost = self._adopt(registered, lambda action: action(), is_waited_for=True)
        with changing(self._runtime_dir) as adapters:
            if read_registry(self._runtime_dir) is None:  # the first engine to get here
                adapters.update(self._adapters)
            _drop(lost, adapters)

    def handle(self, worker: Worker, message: LoadAdapter | UnloadAdapter) -> None:
        """Start a change. Its answer is `AdapterChanged` or `Failed`. Never blocks."""
        self._thread.submit(self._change, worker, message)

    def follow(self) -> None:
        """Start the changes that another engine of the same model has made. Called regularly."""
        registered = read_registry(self._runtime_dir)
        if registered != self._seen or time.monotonic() >= self._try_again_at:
            self._seen, self._try_again_at = registered, math.inf
            self._thread.submit(self._follow)

    def _follow(self) -> None:
        before, registered = self._adapters, read_registry(self._runtime_dir) or {}
        for name in before.keys() - registered.keys():
            self._forget(name)
        if lost := self._adopt(registered, self._in_loop):
            with changing(self._runtime_dir) as adapters:
                _drop(lost, adapters)
        if self._adapters is not before:
            self._announce(self.digests)

    def _adopt(
        self, registered: Adapters, run: Callable[[Callable[[], None]], object], *, is_waited_for: bool = False
    ) -> Adapters:
        """Load what is registered and not loaded yet. Returns those that never can be."""
        lost = {}
        for name, wanted in registered.items():
            known = self._adapters.get(name)
            if known is not None and known.version == wanted.version:
                continue
            try:
                self._add(name, wanted, run)
                continue
            except Exception as error:
                if isinstance(error, LMIError) and not isinstance(error, LoadFailed):
                    logger.error("adapter is no longer loaded", extra={"adapter": name, "cause": str(error)})
                    lost[name] = wanted
                else:
                    extra = {"adapter": name, "cause": str(error) or type(error).__name__}
                    logger.warning("adapter is not loaded yet", extra=extra, exc_info=not isinstance(error, LMIError))
                    self._try_again_at = time.monotonic() + _TRY_AGAIN
                    if is_waited_for:
                        break
            if known is not None:  # other engines have its successor
                self._forget(name)
        return lost

    def _change(self, worker: Worker, message: LoadAdapter | UnloadAdapter) -> None:
        loads = isinstance(message, LoadAdapter)
        known = self._adapters
        try:
            if isinstance(message, LoadAdapter):
                self._load(message)
            else:
                self._unload(message)
        except Exception as error:
            if not isinstance(error, LMIError):
                logger.exception("adapter change failed")
                error = RequestFailed(f"{type(error).__name__}: {error}")
            extra = {"adapter": message.name[:128], "cause": str(error)}
            logger.warning("adapter not loaded" if loads else "adapter not unloaded", extra=extra)
            worker.send(failed(message.number, error))
            return
        if self._adapters is not known:
            logger.info("adapter loaded" if loads else "adapter unloaded", extra={"adapter": message.name})
            self._announce(self.digests)
        worker.send(AdapterChanged(message.number))

    def _load(self, message: LoadAdapter) -> None:
        name, wanted = message.name, RegisteredAdapter(message.source, message.pinned, message.version, message.folder)
        check_name(name)
        if name in self._reserved:
            raise InvalidRequest(f"{name!r} is the name of the model", field="name")
        adapters = read_registry(self._runtime_dir) or {}
        registered = adapters.get(name)
        if registered is None:
            if len(adapters) >= MAX_ADAPTERS:
                raise InvalidRequest(
                    f"there are {MAX_ADAPTERS} adapters already, which is the maximum; unload one first"
                )
        elif registered.version == wanted.version or (registered.source == wanted.source and not message.replace):
            wanted = registered  # perhaps another engine has loaded it; this one reads the same files
        elif not message.replace:
            raise AdapterExists(f"adapter {name!r} is already loaded, from {registered.source[:200]!r}")
        known = self._adapters.get(name)
        if known is None or known.version != wanted.version:
            known = self._add(name, wanted, self._in_loop)
        if known != registered:
            with changing(self._runtime_dir) as adapters:
                adapters[name] = known
        if self._formatters is not None and not known.is_own:
            # Their process may have been started again meanwhile, before it could read of the adapter in the registry.
            with contextlib.suppress(LMIError):  # if they cannot be loaded again, requests fail and say why
                self._formatters.load(name, Path(known.folder), known.version)

    def _add(
        self, name: str, wanted: RegisteredAdapter, run: Callable[[Callable[[], None]], object]
    ) -> RegisteredAdapter:
        """Load an adapter. `run` runs the last step while the engine makes none. Returns it with its folder."""
        with contextlib.ExitStack() as opening:
            files = self._open_own(Path(wanted.source)) if wanted.is_own else self._open(wanted.source, wanted.folder)
            folder = opening.enter_context(files)
            loaded, digest = self._backend.read_adapter(name, folder), adapter_digest(folder)
            with self._with_formatters(name, folder, wanted):
                run(lambda: self._backend.add_adapter(name, folder, loaded, pinned=wanted.pinned))
            self._close_folder(name)
            self._folders[name] = opening.pop_all()
        added = msgspec.structs.replace(wanted, folder=str(folder))
        self._digests = {**self._digests, name: digest}
        self._adapters = self._adapters | {name: added}
        return added

    @contextlib.contextmanager
    def _with_formatters(self, name: str, folder: Path, wanted: RegisteredAdapter) -> Iterator[None]:
        """Load an adapter's formatters, before anyone may use it. If the block fails, there are those from before."""
        formatters, known = self._formatters, self._adapters.get(name)
        if formatters is None or wanted.is_own:
            yield
            return
        formatters.load(name, folder, wanted.version)
        try:
            yield
        except BaseException:
            formatters.unload(name)
            if known is not None and not known.is_own:
                formatters.load(name, Path(known.folder), known.version)
            raise

    def _unload(self, message: UnloadAdapter) -> None:
        name, version = message.name, message.version
        with changing(self._runtime_dir) as adapters:
            if version is not None and name in adapters and adapters[name].version != version:
                return
            adapters.pop(name, None)
        if name in self._adapters:
            self._forget(name)

    def _forget(self, name: str) -> None:
        self._adapters = {other: known for other, known in self._adapters.items() if other != name}
        self._digests = {other: digest for other, digest in self._digests.items() if other != name}
        self._thread.submit(self._remove_when_unused, name)

    def _remove_when_unused(self, name: str) -> None:
        """Let requests in flight finish. An adapter that is loaded under the same name until then stays."""

        def remove(loop: EngineLoop) -> bool:
            if loop.uses_adapter(name):
                return False
            self._backend.remove_adapter(name)
            return True

        if name in self._adapters:
            return
        if self._call(remove):
            if self._formatters is not None:
                self._formatters.unload(name)
            self._close_folder(name)
        else:
            threading.Timer(_LOOK_AGAIN, self._thread.submit, (self._remove_when_unused, name)).start()

    def _close_folder(self, name: str) -> None:
        if name in self._folders:
            self._folders.pop(name).close()

    def _in_loop(self, action: Callable[[], None]) -> None:
        self._call(lambda _: action())

    def _call(self, action: Callable[[EngineLoop], Any]) -> Any:
        """Run `action` between two steps of the engine, and wait for it. Raises what it raises."""
        done: Future[Any] = Future()
        self._inbox.put((NOBODY, LoopCall(action, done)))
        return done.result()


def _drop(lost: Adapters, adapters: Adapters) -> None:
    """Remove what cannot be loaded from the registered `adapters`, unless it was replaced meanwhile."""
    for name, adapter in lost.items():
        if name in adapters and adapters[name].version == adapter.version:
            del adapters[name]
