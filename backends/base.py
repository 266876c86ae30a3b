"""The contract between the engine loop and an engine adapter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.engine_counters import EngineCounters
from lmi_handlers.core.errors import UnsupportedFeature
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.request import TokenRequest
from lmi_handlers.core.thinking import ThinkingMarks


class ModelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The model on disk, as resolved by the engine process. `path` is None for a backend that needs no model.

    `path` is a folder of safetensors with their configuration, and `gguf_file` is None. Only a backend that declares
    `reads_gguf`, or that it needs no weights, gets GGUF files as such: then `path` is a folder with the file's
    tokenizer.json. `cache` is a folder, which need not exist, in which a backend may keep what it converts the model to
    (`lmi_handlers.core.convert_once`).

    This engine is number `engine` of the `engines` that load the model on this machine.

    `adapters` maps the name of each LoRA adapter to its directory. It is empty if `option.enable_lora` is off.

    `runtime_dir` is a folder of the server's, in which only this user may read, and which is gone once the server has ended.

    `thinking` are the marks around the model's thoughts. If they are not known, no request has a
    `thinking_token_budget`.
    """

    path: Path | None
    gguf_file: Path | None = None
    cache: Path | None = None
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    engine: int = 0
    engines: int = 1
    adapters: dict[str, Path] = {}
    thinking: ThinkingMarks | None = None
    runtime_dir: Path | None = None


class Backend(ABC):
    """One loaded model. All calls come from one thread, so adapters need no locks. Exceptions to this are documented.

    `RequestFailed` and `InvalidRequest` fail only the current request. After any other exception, or when the process
    exits, the engine counts as dead. Adapters translate their engine's exceptions accordingly.

    A backend that `measures_steps` divides the time of its steps among the meters of its requests. For others, the loop
    gives each of the backend's sequences an equal share.
    """

    measures_steps: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def load(cls, model: ModelFiles, properties: ServingProperties, report: Callable[[str], None]) -> Backend:
        """Load the model.

        Call `report` with a `LoadPhase` when that phase begins, and with any other text to describe the current phase in
        more detail, such as "layer 7 of 32". Both are logged, and `/ping` shows them. WEIGHTS has begun already.

        Raises `ConfigError`, or `LoadFailed` if a retry may help (see `lmi_handlers.core.load_failure`).
        """

    @classmethod
    def check_options(cls, properties: ServingProperties) -> None:
        """Raise `ConfigError` for an option that the engine would reject. Needs no model.

        `lmi check` calls it if the backend declares `passes_options` or `checks_options`.
        """

    @classmethod
    def preview_resources(cls, properties: ServingProperties) -> tuple[str, bool]:  # noqa: ARG003  for overrides
        """Say what a cluster is asked for and what it has, "" for no cluster, and whether it has answered.

        `lmi check` calls it if the backend declares that the options make it `remote`.
        """
        return "", True

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """The capabilities of this engine with this model."""

    @abstractmethod
    def add_request(self, request: TokenRequest) -> None:
        """Start a sequence. A later `step` returns its first output.

        The caller guarantees that `capabilities` allow the prompt, the parameters and the adapter
        (`lmi_handlers.core.capabilities` has the checks), and that no other sequence has this `request_id`. Raises
        `InvalidRequest` for what only the engine can tell, such as a grammar that it cannot compile.
        """

    @abstractmethod
    def abort(self, request_id: str) -> None:
        """Drop a sequence. Later steps return no output for it. Unknown ids are ignored."""

    @abstractmethod
    def step(self) -> list[TokenOutput]:
        """Advance every running sequence and return the new outputs.

        The last output of a sequence has a finish reason, and no other does.
        """

    @property
    def num_preparing(self) -> int:
        """Number of sequences being prepared, at most `max_num_seqs`. The loop may start as many others meanwhile."""
        return 0

    @property
    def kv_cache_usage(self) -> float:
        """Share of the KV cache in use, from 0 to 1, or 0 if unknown. May be read from any thread."""
        return 0.0

    @property
    def counters(self) -> EngineCounters:
        """The engine's counters since it was loaded. May be read from any thread, even during a step."""
        return EngineCounters()

    @property
    def progress(self) -> int:
        """A number that changes whenever the engine does work without output, such as part of a long prompt.

        If the engine has running sequences but neither outputs nor progress for `option.stall_timeout`, it is
        restarted. May be read from any thread, even during a step.
        """
        return 0

    def read_adapter(self, name: str, folder: Path) -> Any:  # noqa: ARG002  for overrides
        """Read and check the LoRA adapter in `folder`. Returns what `add_adapter` needs. May be called from any thread.

        Raises `InvalidRequest`, which names the adapter, if it cannot be used with this model.
        """
        raise UnsupportedFeature(f"the {self.capabilities.backend} backend loads no adapters while it serves")

    def add_adapter(self, name: str, folder: Path, adapter: Any, *, pinned: bool = False) -> None:  # noqa: ARG002  as above
        """Make an adapter available under `name`, in place of one that may have it. `adapter` is from `read_adapter`.

        A `pinned` one always stays in memory. Raises `InvalidRequest` if there is no room for it.
        """
        raise UnsupportedFeature(f"the {self.capabilities.backend} backend loads no adapters while it serves")

    def remove_adapter(self, name: str) -> None:
        """Forget an adapter that no sequence uses. Unknown names are ignored."""

    def on_idle(self) -> None:
        """Called several times a second while there are no sequences, for what can wait, such as giving memory back."""

    def check_health(self) -> None:
        """Raise `EngineDead` if one of the engine's processes has died.

        Called regularly from another thread, possibly during a `step`.
        """

    def close(self) -> None:
        """Release what would outlive the process. For tests and for programs that embed a backend.

        Engine processes do not call it, because their whole process group is killed.
        """
