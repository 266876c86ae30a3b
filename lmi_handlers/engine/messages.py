"""The whole protocol between web workers and the engine process.

Each message is a MessagePack array tagged with its name; `lmi_handlers.workers.channel` frames them. Every `Submit` is
answered by `Outputs`, in which the last output of each sequence has a finish reason, or by one `Failed`. No answer
follows an `Abort`.
"""

from __future__ import annotations

import socket
from hashlib import blake2b
from typing import Protocol

import msgspec

from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.errors import LMIError, told
from lmi_handlers.core.meter import Paid
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.pooling_params import PoolingParams
from lmi_handlers.core.request import EncodedPrompt
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.core.usage import Owner
from lmi_handlers.workers.channel import Channel

# From a web worker


class Submit(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Generate `sampling_params.n` sequences per prompt. `number` is chosen by the worker, unique per connection.

    Sequence i of the answer belongs to prompt i // n. With `pooling_params`, embed or classify each prompt instead.
    `generated` is as in `GenerationRequest`.
    A request joins the answer to an earlier one with the same `join_key`, if there is one (see `join_key`). `owner` is as in
    `GenerationRequest`.
    """

    number: int
    request_id: str
    prompts: list[EncodedPrompt]
    sampling_params: SamplingParams
    priority: int = 0
    pooling_params: PoolingParams | None = None
    generated: tuple[int, ...] = ()
    join_key: bytes | None = None
    owner: Owner = Owner()


class Abort(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Stop sequence `index` of this request, or all of them if it is None. Nobody waits for them any more.

    With a `join_key`, a client that has left may come back, unless this is `final`.
    """

    number: int
    index: int | None = None
    final: bool = False


class LoadAdapter(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Load the adapter at `source` under `name`, or with `replace` in place of one that may have the name.

    `version` is the same for all engines of a model, and for no other adapter. Answered by `AdapterChanged` or `Failed`.
    It is not an error if the same adapter is loaded already. `folder` is where its files are, if it was loaded before.
    """

    number: int
    name: str
    source: str
    version: int
    pinned: bool = False
    replace: bool = False
    folder: str = ""


class UnloadAdapter(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Refuse further requests for an adapter, and drop it once no request uses it. Answered like `LoadAdapter`.

    It is not an error if it is not loaded. With `version`, an adapter that another one has replaced stays.
    """

    number: int
    name: str
    version: int | None = None


class Synced(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Everything that was sent before `Sync` with this number has been handled."""

    number: int


# From the engine process


class Loading(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine is not ready. `phase` says what it is doing, and since when on the monotonic clock.

    `bundle` is the directory of the text bundle once it has been written, so that workers load it beside the engine.
    """

    phase: str
    since: float
    bundle: str | None = None


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The engine accepts requests from now on. `bundle` is the directory of the text bundle.

    `capabilities` are the backend's, within the limits that options set.
    """

    bundle: str
    capabilities: Capabilities


class Joined(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The request has joined the answer to an earlier one. All outputs of that follow, from the beginning."""

    number: int


class Pays(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A request that has joined an answer pays for it from now on, but not for what is `paid`. Until then, it pays nothing."""

    number: int
    paid: Paid


class SequenceOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An output for sequence `index` of request `number`. `queue_time` is how many seconds the request waited.

    The last two are the request's `Meter` at this output.
    """

    number: int
    index: int
    output: TokenOutput
    queue_time: float
    engine_time: float = 0.0
    kv_block_time: float | None = None


class Outputs(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """All new outputs of one engine step, or of several joined ones, for one worker's requests."""

    outputs: list[SequenceOutput]


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The whole request has failed. `error` is the name of a class in `lmi_handlers.core.errors`.

    For an `InvalidRequest`, `field` is the field of `SamplingParams` at fault, if known. `code` is None for the class's own.
    """

    number: int
    error: str
    message: str
    field: str | None = None
    code: str | None = None


class AdapterChanged(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The adapter is loaded or unloaded. Every worker that answers in time has handled a `Ready` with the new names."""

    number: int


class Sync(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Answered by `Synced`. `number`, from 1, is chosen by the engine process."""

    number: int


WorkerMessage = Submit | Abort | LoadAdapter | UnloadAdapter | Synced
EngineMessage = Loading | Ready | Joined | Pays | Outputs | Failed | AdapterChanged | Sync


class Worker(Protocol):
    """The web worker at the other end of a connection."""

    def send(self, message: EngineMessage) -> None:
        """Queue a message for the worker. Never blocks, and does nothing if the worker is gone."""


def join_key(submit: Submit, identity: bytes) -> bytes:
    """Return what only requests have in common that ask for the same with the same `identity`, on the same engine."""
    asked = msgspec.structs.replace(submit, number=0, request_id="", priority=0, join_key=identity)
    return blake2b(msgspec.msgpack.encode(asked), digest_size=32).digest()


def failed(number: int, error: LMIError) -> Failed:
    """Return the message that says why the worker's request `number` has failed."""
    return Failed(number, *told(error))


def worker_end(sock: socket.socket) -> Channel[WorkerMessage, EngineMessage]:
    """Return the web worker's end, which sends `Submit` and `Abort`."""
    return Channel(sock, msgspec.msgpack.Decoder(EngineMessage))


def engine_end(sock: socket.socket) -> Channel[EngineMessage, WorkerMessage]:
    """Return the engine process's end, which sends its state, `Outputs` and `Failed`."""
    return Channel(sock, msgspec.msgpack.Decoder(WorkerMessage))
