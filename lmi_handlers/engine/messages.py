"""The whole protocol between web workers and the engine process, on one screen.

Each message is a MessagePack array tagged with its name; `lmi_handlers.engine.channel` frames them. Every `Submit` is
answered by `Outputs` whose last output for each sequence has a finish reason, or by one `Failed`; after `Abort` comes nothing.
"""

from __future__ import annotations

import msgspec

from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.request import ImagePrompt
from lmi_handlers.core.sampling_params import SamplingParams

# From a web worker


class Submit(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Generate `sampling_params.n` sequences for each prompt. `number` is the worker's own and unique on its connection.

    Sequence i of the answer belongs to prompt i // n. `adapters` has one name or None for each prompt, or is empty;
    so has `image_prompts` where a prompt has images.
    """

    number: int
    request_id: str
    prompts: list[list[int]]
    sampling_params: SamplingParams
    adapters: list[str | None] = []
    priority: int = 0
    image_prompts: list[ImagePrompt | None] = []


class Abort(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Nobody waits for sequence `index` of this request any more, nor for any of them where it is None."""

    number: int
    index: int | None = None


# From the engine process


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a web worker must know of a loaded engine: the text bundle's directory, the backend's limits, and its device."""

    bundle: str
    backend: str
    model_name: str
    max_model_len: int
    vocab_size: int
    max_logprobs: int
    unsupported: tuple[str, ...]
    max_prompt_logprobs: int | None = None
    adapters: tuple[str, ...] = ()
    device: str = ""
    dtype: str = ""
    max_num_seqs: int = 1
    takes_images: bool = False


class Loading(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine is not ready; `phase` says what it is doing."""

    phase: str


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine takes requests from here on."""

    info: EngineInfo


class SequenceOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A backend's output for sequence `index` of request `number`; `queue_time` is how many seconds the request waited."""

    number: int
    index: int
    output: TokenOutput
    queue_time: float


class Outputs(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Everything that one engine step made for the requests of one worker."""

    outputs: list[SequenceOutput]


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The request as a whole has failed; `error` is the name of a class in `lmi_handlers.core.errors`.

    `field` is the one of `SamplingParams` that an `InvalidRequest` is about, where that is known.
    """

    number: int
    error: str
    message: str
    field: str | None = None


WorkerMessage = Submit | Abort
EngineMessage = Loading | Ready | Outputs | Failed
