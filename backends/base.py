"""The contract between the engine loop and an engine adapter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import msgspec

from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.request import TokenRequest


class ModelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The model on disk, as the engine process has resolved it. `path` is None for a backend that needs no model.

    `adapters` maps the name of each LoRA adapter to its directory; empty where `option.enable_lora` is off.
    """

    path: Path | None
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    adapters: dict[str, Path] = {}


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a loaded backend can do. Sent to the web workers; asking for more is the client's 4xx, never a silent drop.

    `max_model_len` counts prompt and generated tokens together, `max_num_seqs` the sequences that run at a time.
    `max_logprobs` bounds `logprobs`, and `prompt_logprobs` too unless `max_prompt_logprobs` does. `unsupported` names the
    `SamplingParams` fields that this backend cannot honour, or "adapters"; `adapters` are the LoRA adapters that requests may
    ask for. `device` is what it runs on, in torch's words such as "cpu" or "cuda"; empty where it does not say,
    and so is `dtype`, the type of the weights, such as "bfloat16".
    `takes_images` is true where prompts may have images.
    """

    backend: str
    max_model_len: int
    vocab_size: int
    max_num_seqs: int = 32
    max_logprobs: int = 20
    max_prompt_logprobs: int | None = None
    unsupported: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    device: str = ""
    dtype: str = ""
    takes_images: bool = False


class Backend(ABC):
    """One loaded model. One thread calls it, so adapters need no locks. Members that other threads may use say so.

    A method that raises `RequestFailed` or `InvalidRequest` fails the request at hand; any other exception, or the end of
    the process, is the engine's death. Adapters turn their engine's exceptions into these at their own boundary.
    """

    needs_model: ClassVar[bool] = True
    """False for an engine that generates without weights; it is then given a byte-level tokenizer."""

    @classmethod
    @abstractmethod
    def load(cls, model: ModelFiles, properties: ServingProperties, report: Callable[[str], None]) -> Backend:
        """Load the model. `report` takes a short phase such as "loading weights" for `/ping`.

        Raises `ConfigError`, or `LoadFailed` where another try may help (see `lmi_handlers.core.load_failure`).
        """

    @classmethod
    def check_options(cls, properties: ServingProperties) -> None:
        """Raise `ConfigError` for an option that the engine would refuse, without a model; for `lmi check`."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this engine, with this model, can do."""

    @abstractmethod
    def add_request(self, request: TokenRequest) -> None:
        """Start a sequence; its first output comes from a later `step`. Raises `InvalidRequest` if it never can."""

    @abstractmethod
    def abort(self, request_id: str) -> None:
        """Forget a sequence: no output of it comes from any later `step`. Unknown ids are ignored."""

    @abstractmethod
    def step(self) -> list[TokenOutput]:
        """Advance every running sequence and return what is new; each ends with exactly one output with a finish reason."""

    @property
    def num_preparing(self) -> int:
        """Sequences that need no place yet, at most `max_num_seqs`; the loop starts as many others in their stead."""
        return 0

    @property
    def kv_cache_usage(self) -> float:
        """How much of the room for keys and values is taken, from 0 to 1; 0 where that is not known. Any thread may ask."""
        return 0.0

    @property
    def progress(self) -> int:
        """A number that changes when work is done that no output shows yet, such as a part of a long prompt.

        An engine with running sequences that shows neither outputs nor progress for `option.stall_timeout` is ended and
        started again. Any thread may ask, during a step too.
        """
        return 0

    def check_health(self) -> None:
        """Raise `EngineDead` where a process of the engine's has died. Called all the time from another thread, `step` or not."""

    def close(self) -> None:
        """Give back what the process exit would not; for tests and programs that embed a backend.

        An engine process does not call it: its whole group is ended.
        """
