"""Tells the process that runs a model's formatters of those that an adapter brings while the server runs.

Each change is a connection of its own: one message, and one answer once all web workers know. If the process is started
again, it reads from the registry which adapters there are.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec

from lmi_handlers.config.formatter_code import FormatterScript, script_of_adapter
from lmi_handlers.core.connection_limit import ended_after
from lmi_handlers.core.errors import ConfigError, InvalidRequest, LoadFailed
from lmi_handlers.engine.formatters_process import check_loading
from lmi_handlers.engine.settings import EngineSettings
from lmi_handlers.workers.channel import Channel
from lmi_handlers.workers.link import RECONNECT_INTERVAL, connect

_PATIENCE = 60.0
"""Seconds to wait for a process that is being started."""

_MAX_CAUSE = 300
"""Characters of a cause that a client sees."""


class LoadFormatters(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Import an adapter's file, in place of one that the adapter may have, and use it for new requests.

    Nothing is done if it is this `version` of the adapter that is loaded. With `only_asks`, nothing is done in any case:
    the answer has an error unless it is loaded.
    """

    script: FormatterScript
    version: int
    only_asks: bool = False


class UnloadFormatters(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Forget the formatters of this `version` of an adapter, or of any if it is None. Answers that have begun go on."""

    adapter: str
    version: int | None = None


class FormattersChanged(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The change has been made and all web workers know, or it could not be made for this reason."""

    error: str | None = None


FormatterChange = LoadFormatters | UnloadFormatters


class AdapterFormatters:
    """The formatters of the adapters of one engine. `settings` are the engine's, with the code of the formatters."""

    def __init__(self, settings: EngineSettings) -> None:
        assert settings.formatters is not None  # noqa: S101  otherwise there is no such process
        self._settings = settings
        self._code = settings.formatters
        self._versions: dict[str, int] = {}

    def load(self, name: str, folder: Path, version: int) -> None:
        """Load the formatters of the adapter in `folder`, or forget those of the adapter's last version if it has none.

        Raises `InvalidRequest` if they cannot be used. They are imported in a process of their own before, so that nobody else
        notices that. Raises `LoadFailed` if the process is not there.
        """
        try:
            script = script_of_adapter(folder, name)
            if script is None:
                self._forget(name, None, patience=_PATIENCE)
                return
            if self._ask(LoadFormatters(script, version, only_asks=True)) is not None:
                code = msgspec.structs.replace(self._code, scripts=(script,), follows_adapters=False)
                check_loading(msgspec.structs.replace(self._settings, formatters=code), "formatter_timeout")
                if (error := self._ask(LoadFormatters(script, version))) is not None:
                    raise ConfigError(error)
        except ConfigError as error:
            cause = " ".join(str(error).split())[:_MAX_CAUSE]
            raise InvalidRequest(f"the formatters of adapter {name!r} cannot be used: {cause}", field="src") from error
        self._versions[name] = version

    def unload(self, name: str) -> None:
        """Forget the formatters that were loaded for an adapter, if there are any."""
        if (version := self._versions.pop(name, None)) is not None:
            self._forget(name, version)

    def _forget(self, name: str, version: int | None, patience: float = 0.0) -> None:
        with contextlib.suppress(LoadFailed, ConfigError):  # the process will be started, and reads the registry
            self._ask(UnloadFormatters(name, version), patience)

    def _ask(self, change: FormatterChange, patience: float = _PATIENCE) -> str | None:
        """Return the error of a change, or None.

        Raises `LoadFailed` if the process is not there after `patience` seconds, or does not answer within
        `predict_timeout`, when no client waits any more.
        """
        deadline = time.monotonic() + patience
        while True:
            try:
                sock = connect(self._settings.formatter_changes_path)
                break
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise LoadFailed("the model's formatters are being started") from error
                time.sleep(RECONNECT_INTERVAL)
        channel: Channel[FormatterChange, FormattersChanged] = Channel(sock, msgspec.msgpack.Decoder(FormattersChanged))
        limit = self._settings.properties.predict_timeout
        with (
            contextlib.closing(channel),
            ended_after(sock, limit) as expired,
            contextlib.suppress(OSError),  # it has ended
        ):
            channel.send(change)
            for answer in channel.receive():
                return answer.error
        if expired.is_set():
            raise LoadFailed(f"the process that runs formatters has not answered within {limit} s")
        raise ConfigError("the process that runs formatters has ended meanwhile")
