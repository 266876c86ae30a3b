"""The interface of the protocols of remote engines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import msgspec

from backends.finite_params import finite_params
from backends.remote.client import MAX_EVENT, Client, RemoteAnswer, error_message, one_line, rejection
from lmi_handlers.core.errors import ConfigError, RequestError, RequestFailed
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.request import TokenRequest
from lmi_handlers.core.sampling_params import SamplingParams

T = TypeVar("T")

EventReader = Callable[[bytes], TokenOutput | None]
"""Turns an event of one sequence into its output, None if the event has none."""

ASKING = 10.0
"""Seconds within which a remote says something about itself."""

_MAX_TOP_K = 2**30
_NOT_YET = (429, 502, 503, 504)
"""Statuses of a server, or of a proxy before it, that is not ready or is asked too often."""


@dataclass(frozen=True, slots=True, eq=False)
class RemoteSequence:
    """A sequence as it is asked for, within `token_limits`. `stop_token_ids` has the ids that end it."""

    request: TokenRequest
    max_tokens: int
    min_tokens: int
    stop_token_ids: tuple[int, ...]

    @property
    def params(self) -> SamplingParams:
        """The request's sampling parameters, bounded by `finite_params`."""
        return finite_params(self.request.sampling_params)

    @property
    def top_k(self) -> int:
        """0 means off. No vocabulary has as many tokens as the maximum, and some remotes compute with 32 bits."""
        return max(0, min(self.params.top_k, _MAX_TOP_K))

    @property
    def prompt(self) -> list[int]:
        """The prompt's tokens, and those of an answer that continues."""
        return self.request.prompt.token_ids

    def cached(self, count: int) -> int:
        """Return how many tokens of the client's prompt are among the first `count` of `prompt`, without its last one."""
        return max(0, min(count, len(self.prompt) - max(1, len(self.request.generated))))


class Description(msgspec.Struct, frozen=True):
    """A remote's description of itself. `max_model_len` is None if it does not say. `unsupported` adds to the protocol's."""

    model: str
    max_model_len: int | None = None
    unsupported: tuple[str, ...] = ()


class Error(msgspec.Struct):
    """An error in place of an event. vLLM and SGLang have adopted it from OpenAI."""

    message: str = ""
    code: int | str | None = None

    def as_error(self) -> RequestError:
        """Return the error with which the sequence ends."""
        return rejection(self.code, one_line(self.message))


class RemoteModel(msgspec.Struct):
    """A model in the answer of `/v1/models`."""

    id: str
    max_model_len: int | None = None


class RemoteModels(msgspec.Struct):
    """The answer of `/v1/models`, of vLLM and SGLang alike."""

    data: list[RemoteModel]


class RemoteTokens(msgspec.Struct):
    """The answer of `/tokenize`."""

    tokens: list[int]


class RemoteProtocol(ABC):
    """The protocol of one kind of server. It has no state, and knows nothing of connections.

    `unsupported` and `max_logprobs` are those of `Capabilities`.
    """

    title: ClassVar[str]
    path: ClassVar[str]
    health: ClassVar[str] = "/health"
    unsupported: ClassVar[tuple[str, ...]] = ()
    max_logprobs: ClassVar[int]
    max_prompt_logprobs: ClassVar[int | None] = None
    takes_cache_salt: ClassVar[bool] = False

    @abstractmethod
    async def describe(self, client: Client) -> Description | None:
        """Ask the remote what it serves. Returns None if it speaks another protocol.

        Raises one of `ConnectionFailed`, `RequestFailed` if it is not ready, and `ConfigError` for a server that speaks
        the protocol but does not generate.
        """

    async def tokenize(self, client: Client, text: str) -> list[int] | None:
        """Return the remote's tokens of a text, without special ones.

        Returns None if it does not say, like vLLM with `--tokens-only` and old versions of SGLang.
        """
        found = read(await client.ask("/tokenize", self.text_body(text), seconds=ASKING), RemoteTokens)
        return None if found is None else found.tokens

    def text_body(self, text: str) -> dict[str, Any]:
        """Return the body that asks for the tokens of a text."""
        return {"prompt": text, "add_special_tokens": False}

    @abstractmethod
    def body(self, sequence: RemoteSequence) -> dict[str, Any]:
        """Return the body of the request. Raises `InvalidRequest`."""

    @abstractmethod
    def reader(self, sequence: RemoteSequence) -> EventReader:
        """Return what reads the events of the answer, or the answer itself if it is not streamed.

        It raises `RequestError` for an error that the remote has sent, and `msgspec.MsgspecError` or `ValueError` for
        what is not the protocol's.
        """

    def longest_event(self, sequence: RemoteSequence) -> int:  # noqa: ARG002  for overrides
        """Return how many bytes an event of the answer may have."""
        return MAX_EVENT

    def longest_answer(self, sequence: RemoteSequence) -> int | None:  # noqa: ARG002  for overrides
        """Return how many bytes an answer that is not streamed may have, or None if it is streamed."""
        return None


def read(answer: RemoteAnswer, kind: type[T]) -> T | None:
    """Return the answer, None if it has another status or another form. Raises `RequestFailed` if it may come later."""
    if answer.status in _NOT_YET:
        raise RequestFailed(f"the remote engine answered with status {answer.status}")
    if answer.status != 200:
        return None
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def check_key(answer: RemoteAnswer, variable: str) -> None:
    """Raise `ConfigError` if the remote does not accept the key."""
    if answer.status in (401, 403):
        raise ConfigError(
            f"the remote engine refuses the key in {variable}, or there is none: {error_message(answer.body)}"
        )
