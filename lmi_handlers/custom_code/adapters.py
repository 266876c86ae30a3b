"""Adapters of a model whose own code loads them: its functions are called, in each process that runs it.

What they have loaded is in the server's registry, as for engines. A process that is started later is told of it, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lmi_handlers.config.custom_code import REGISTER, UNREGISTER, UPDATE, CustomCode
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.errors import (
    AdapterExists,
    AdapterNotFound,
    ConfigError,
    EngineNotReady,
    InvalidRequest,
    LMIError,
    RefusedByCode,
    RequestFailed,
    UnsupportedFeature,
)
from lmi_handlers.custom_code.messages import ChangeAdapter, Invoke
from lmi_handlers.custom_code.runner import CodeError, CodeRunner
from lmi_handlers.engine.adapter_registry import (
    MAX_ADAPTERS,
    Adapters,
    RegisteredAdapter,
    changing,
    check_name,
    read_registry,
)
from lmi_handlers.engine.adapters import AdapterSources

MAX_OPTIONS_SIZE = 1 << 14
"""Characters that the options of an adapter may have together. They are kept, and sent to each new process."""

_FIRST_ERROR = 300
_FIRST_REFUSAL = 400
_MAX_REASON = 2000

logger = logging.getLogger(__name__)


class CodeAdapters:
    """Tells processes of adapters. While `lock` is held, none is told of a change.

    A process joins the others while its starter holds the lock, after `restore`.
    """

    def __init__(self, code: CustomCode, properties: ServingProperties, runtime_dir: Path) -> None:
        self.lock = asyncio.Lock()
        self._code = code
        self._properties = properties
        self._runtime_dir = runtime_dir

    async def begin(self, code: CustomCode, runners: Sequence[CodeRunner]) -> None:
        """Tell the first processes of the model's own adapters, in `adapters/`, or of all if the pool was restarted.

        Raises `CodeError` if one of the model's own is refused.
        """
        self._code = code
        if REGISTER not in code.adapter_functions:
            return
        if read_registry(self._runtime_dir) is not None:
            for runner in runners:
                await self.restore(runner, runners)
            return
        own = _own_adapters(code)
        for name, adapter in own.items():
            for runner in runners:
                if (error := await self._ask(runner, REGISTER, name, adapter)) is not None:
                    raise CodeError(ConfigError(f"{code.path}: {REGISTER}: {adapter.source}: {error}"))
        with changing(self._runtime_dir) as adapters:
            adapters.update(own)

    async def restore(self, runner: CodeRunner, others: Iterable[CodeRunner]) -> None:
        """Tell a new process of all adapters. One that it cannot load is forgotten by `others`, too."""
        if REGISTER not in self._code.adapter_functions:
            return
        for name, adapter in (read_registry(self._runtime_dir) or {}).items():
            if (error := await self._ask(runner, REGISTER, name, adapter)) is None:
                continue
            logger.error("adapter is no longer loaded", extra={"adapter": name, "cause": str(error)})
            with changing(self._runtime_dir) as adapters:
                adapters.pop(name, None)
            for other in others if UNREGISTER in self._code.adapter_functions else ():
                await self._ask(other, UNREGISTER, name, adapter)

    async def change(self, message: ChangeAdapter, runners: Sequence[CodeRunner]) -> None:
        """Make a change in all processes, and register it. If the first one refuses it, nothing has changed.

        Another process that fails is ended: the one that replaces it is told of everything that is registered. Raises
        what is wrong with the change, `RefusedByCode` if the code says so, `EngineNotReady` if there is no process.
        """
        name, function = message.name, message.function
        registered = read_registry(self._runtime_dir) or {}
        if function not in self._code.adapter_functions:
            raise UnsupportedFeature(f"{self._code.path} defines no function {function}(inputs)")
        wanted = RegisteredAdapter("")
        if function == UNREGISTER:
            if name not in registered:
                raise AdapterNotFound(f"The adapter {name[:128]!r} was not found")
            wanted = registered[name]
        else:
            wanted = await self._wanted(message)
            if not self._is_new(message, wanted, registered):
                return
        if not runners:
            raise EngineNotReady("no process runs the model's code")
        if (error := await self._ask(runners[0], function, name, wanted)) is not None:
            logger.warning(
                "adapter not unloaded" if function == UNREGISTER else "adapter not loaded",
                extra={"adapter": name, "cause": str(error)},
            )
            raise error
        with changing(self._runtime_dir) as adapters:
            if function == UNREGISTER:
                adapters.pop(name, None)
            else:
                adapters[name] = wanted
        for runner in runners[1:]:
            if (error := await self._ask(runner, function, name, wanted)) is not None:
                extra = {"adapter": name, "cause": str(error)}
                logger.error("adapter not changed in one of the processes, which is replaced", extra=extra)
                await runner.end()
        logger.info("adapter unloaded" if function == UNREGISTER else "adapter loaded", extra={"adapter": name})

    async def _wanted(self, message: ChangeAdapter) -> RegisteredAdapter:
        """Return what is to be registered. Raises `InvalidRequest`."""
        check_name(message.name)
        if sum(len(name) + len(text) for name, text in message.options.items()) > MAX_OPTIONS_SIZE:
            raise InvalidRequest(f"the adapter's options must have at most {MAX_OPTIONS_SIZE} characters together")
        sources = AdapterSources(self._properties, model_folder(self._code))
        source = await asyncio.to_thread(sources.locate, message.source)
        return RegisteredAdapter(source, message.pinned, version=1, options=message.options)

    def _is_new(self, message: ChangeAdapter, wanted: RegisteredAdapter, registered: Adapters) -> bool:
        """Tell whether the code must be called. Raises `AdapterExists`, `AdapterNotFound` or `InvalidRequest`."""
        known = registered.get(message.name)
        if message.function == UPDATE:
            if known is None:
                raise AdapterNotFound(f"The adapter {message.name[:128]!r} was not found")
            return True
        if known is None:
            if len(registered) >= MAX_ADAPTERS:
                raise InvalidRequest(
                    f"there are {MAX_ADAPTERS} adapters already, which is the maximum; unload one first"
                )
            return True
        if (known.source, known.options) != (wanted.source, wanted.options):
            raise AdapterExists(f"adapter {message.name!r} is already loaded, from {known.source[:200]!r}")
        return False

    async def _ask(self, runner: CodeRunner, function: str, name: str, adapter: RegisteredAdapter) -> LMIError | None:
        """Call a function in a process. Returns why it has failed, if it has."""
        properties = {"handler": function, "name": name, "model_dir": self._code.properties["model_dir"]}
        options: Mapping[str, str] = {}
        if function != UNREGISTER:
            properties["src"] = adapter.source
            options = adapter.options
        invoke = Invoke("", properties, [(option, text.encode()) for option, text in options.items()])
        answer = await runner.ask(function, invoke, self._properties.model_loading_timeout)
        if isinstance(answer.error, RequestFailed):
            return RefusedByCode(str(answer.error))
        if answer.error is None and answer.status >= _FIRST_ERROR:
            return RefusedByCode(_reason(answer.text), max(answer.status, _FIRST_REFUSAL))
        return answer.error


def _reason(content: bytes) -> str:
    """Return the text of an error, which `Output.error` has put into a document."""
    text = content.decode(errors="replace")
    with contextlib.suppress(ValueError, TypeError, LookupError, RecursionError):
        text = str(json.loads(text)["error"])
    return text[:_MAX_REASON]


def model_folder(code: CustomCode) -> Path | None:
    """Return the folder that `option.model_id` names, or None if it is not one of this machine."""
    name = code.properties.get("model_id")
    path = Path(code.properties["model_dir"], name) if name else None
    return path if path is not None and path.is_dir() else None


def _own_adapters(code: CustomCode) -> Adapters:
    """Return the folders in `adapters/`, beside the code and in the model's folder. Raises `CodeError`."""
    found: Adapters = {}
    for place in (model_folder(code), Path(code.properties["model_dir"])):
        for path in sorted(place.glob("adapters/*")) if place is not None else ():
            if path.is_dir() and not path.name.startswith("."):
                try:
                    check_name(path.name)
                except InvalidRequest as error:
                    raise CodeError(ConfigError(f"{path}: {error}")) from error
                found[path.name] = RegisteredAdapter(str(path))
    return found
