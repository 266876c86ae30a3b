"""The LoRA adapters of a vLLM engine, by name. vLLM knows them by number."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection
from pathlib import Path

from vllm import LLMEngine
from vllm.lora.request import LoRARequest

from backends.vllm.errors import one_line
from lmi_handlers.core.errors import InvalidRequest


class EngineAdapters:
    """Loads adapters into `engine`, and unloads them. Each gets a number and a name of its own.

    Otherwise vLLM would take an adapter that replaces another one for the same, and reuse its prefixes.
    """

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        self._requests: dict[str, LoRARequest] = {}
        self._replaced: list[LoRARequest] = []
        self._numbers = itertools.count(1)
        lora, device = engine.vllm_config.lora_config, engine.vllm_config.device_config.device_type
        # On a CPU, requests without an adapter use whatever is in the last slot, so that slot must stay empty.
        self._places = 0 if lora is None else lora.max_loras
        self._pinned: dict[str, bool] = {}
        self._slots = lora.max_loras - 1 if lora is not None and device == "cpu" else None

    @property
    def names(self) -> tuple[str, ...]:
        """Names in order of arrival."""
        return tuple(self._requests)

    def add(self, name: str, folder: Path, *, pinned: bool = False) -> None:
        """Load an adapter, in place of one that may have the name. Raises `InvalidRequest`.

        Loading it now matters: a failure during a step would end the whole batch.
        """
        if self._engine.vllm_config.lora_config is None:
            raise InvalidRequest("adapters need option.enable_lora=true")
        if self._slots is not None and len(self._requests) + len(self._replaced) >= self._slots:
            raise InvalidRequest(
                f"adapter {name!r} cannot be loaded: on a CPU, vLLM has room for {self._slots} adapters with "
                f"option.max_loras={self._slots + 1}, and for one less while it replaces one"
            )
        others = sum(pinned for other, pinned in self._pinned.items() if other != name)
        if pinned and others + 1 >= self._places:  # vLLM's step would find no place for any other adapter, and end
            raise InvalidRequest(
                f"adapter {name!r} cannot be pinned: {others} are, and one of option.max_loras={self._places} places must "
                "be left for the other adapters"
            )
        number = next(self._numbers)
        request = LoRARequest(f"{name}-{number}", number, str(folder))
        try:
            self._engine.add_lora(request)
            if pinned:
                self._engine.pin_lora(number)
        except Exception as error:
            with contextlib.suppress(Exception):  # part of it may be loaded
                self._engine.remove_lora(number)
            raise InvalidRequest(f"adapter {name!r} cannot be loaded: {one_line(error)}") from error
        if name in self._requests:
            self._replaced.append(self._requests[name])
        self._requests[name] = request
        self._pinned[name] = pinned

    def get(self, name: str) -> LoRARequest:
        """Return what vLLM needs for a request. Raises `InvalidRequest` if the adapter is gone, or its files are.

        vLLM reads an adapter again if others have taken its place in memory.
        """
        request = self._requests.get(name)
        if request is None:
            raise InvalidRequest(f"adapter {name!r} is no longer loaded", field="adapters")
        if request.lora_int_id not in self._engine.list_loras():
            try:
                self._engine.add_lora(request)
            except Exception as error:
                raise InvalidRequest(f"adapter {name!r} cannot be loaded: {one_line(error)}") from error
        return request

    def remove(self, name: str) -> None:
        """Unload an adapter that no request uses, if there is one."""
        self._pinned.pop(name, None)
        if (request := self._requests.pop(name, None)) is not None:
            self._engine.remove_lora(request.lora_int_id)

    def drop_replaced(self, in_use: Collection[str | None]) -> None:
        """Unload adapters that were replaced, except those in use. `in_use` are vLLM's names for them."""
        for request in [request for request in self._replaced if request.lora_name not in in_use]:
            self._engine.remove_lora(request.lora_int_id)
            self._replaced.remove(request)
