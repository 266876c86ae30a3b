"""The adapter for remote engines: capabilities, requests, health."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from backends.base import Backend, ModelFiles
from backends.continuation import NOT_CONTINUED, within_prompt
from backends.max_model_len import choose_max_model_len
from backends.remote import DECLARATION
from backends.remote.address import engine_key, engine_url, is_operators
from backends.remote.client import Client
from backends.remote.command import StartedEngine, engine_command
from backends.remote.options import DEFAULT_BATCH_SIZE, KEY_VARIABLE, RemoteOptions
from backends.remote.protocol import Description, RemoteProtocol, RemoteSequence
from backends.remote.start import compare_tokenizer, find_protocol
from backends.remote.streams import EventLoop, Streams
from backends.token_limits import token_limits
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.errors import ConfigError, EngineDead
from lmi_handlers.core.load_phase import LoadPhase
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.request import TokenRequest
from lmi_handlers.workers.environment import child_environment

logger = logging.getLogger(__name__)

_WAIT = 0.01


class RemoteBackend(Backend):
    """Sends each sequence to the remote, which batches them itself, and collects the outputs."""

    def __init__(
        self,
        loop: EventLoop,
        client: Client,
        protocol: RemoteProtocol,
        description: Description,
        model: ModelFiles,
        properties: ServingProperties,
        started: StartedEngine | None = None,
    ) -> None:
        """Start to look at the remote's health. Raises `ConfigError` if `option.max_model_len` is too large."""
        self._loop = loop
        self._client = client
        self._protocol = protocol
        # Some files have ids that the model does not. A remote would reject every request that names them.
        self._eos_token_ids = tuple(token for token in model.eos_token_ids if token < model.vocab_size)
        self._started = started
        self._capabilities = Capabilities(
            backend=DECLARATION.name,
            max_model_len=choose_max_model_len(description.max_model_len, properties.max_model_len),
            max_num_seqs=properties.max_rolling_batch_size or DEFAULT_BATCH_SIZE,
            vocab_size=model.vocab_size,
            max_logprobs=protocol.max_logprobs,
            max_prompt_logprobs=protocol.max_prompt_logprobs,
            unsupported=(*DECLARATION.unsupported, *protocol.unsupported, *description.unsupported),
            takes_cache_salt=protocol.takes_cache_salt,
            continues=True,
            not_continued=NOT_CONTINUED,
        )
        self._sequences: dict[str, RemoteSequence] = {}
        self._streams = Streams(loop, client, protocol, vocab_size=model.vocab_size, patience=properties.stall_timeout)

    @classmethod
    def load(cls, model: ModelFiles, properties: ServingProperties, report: Callable[[str], None]) -> RemoteBackend:
        """Wait for the remote. Raises `ConfigError` if it is not what the options say."""
        url, command = _where(properties)
        options = properties.options_of(RemoteOptions)
        environ = dict(os.environ)
        if not _is_operators(options):
            environ = child_environment(environ)  # a model's own program is its code, which has no use for credentials
            environ.pop(KEY_VARIABLE, None)
        key, name = engine_key(environ), options.engine_protocol
        started, unix_socket = None, None
        with contextlib.ExitStack() as ends:
            if command is None:
                report(LoadPhase.RESOURCES)
            else:
                started = StartedEngine(command, environ, model.runtime_dir or Path(tempfile.gettempdir()))
                ends.callback(started.close)
                url, unix_socket = started.url, started.socket
            address = url if unix_socket is None else f"unix:{unix_socket}"
            loop = EventLoop()
            ends.callback(loop.close)
            client = loop.run(_connect(url, key, unix_socket))
            ends.callback(lambda: loop.run(client.close()))
            protocol, description = loop.run(
                find_protocol(client, name, address, report, _nothing if started is None else started.check_loading)
            )
            report(LoadPhase.CHECKING)
            if model.path is not None:
                loop.run(compare_tokenizer(client, protocol, description, model.path))
            backend = cls(loop, client, protocol, description, model, properties, started)
            ends.pop_all()
        logger.info(
            "remote engine found", extra={"url": address, "protocol": protocol.title, "engine_model": description.model}
        )
        return backend

    @classmethod
    def check_options(cls, properties: ServingProperties) -> None:
        """Check the address or the command, and the key."""
        _where(properties)
        engine_key(os.environ)

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the protocol, within the limits of the remote."""
        return self._capabilities

    def add_request(self, request: TokenRequest) -> None:
        """Start a sequence. If the remote rejects it, its only output says so."""
        request = within_prompt(request)
        params = request.sampling_params
        max_tokens, min_tokens = token_limits(request, self._capabilities)
        sequence = RemoteSequence(
            request,
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop_token_ids=(*params.stop_token_ids, *(() if params.ignore_eos else self._eos_token_ids)),
        )
        self._streams.start(sequence, self._protocol.body(sequence))
        self._sequences[request.request_id] = sequence

    def abort(self, request_id: str) -> None:
        """End a sequence at the remote. `step` drops outputs that are already here."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            self._streams.abort(sequence)

    def step(self) -> list[TokenOutput]:
        """Return the outputs since the last call. Waits briefly if there are none."""
        outputs = []
        for sequence, output in self._streams.receive(_WAIT if self._sequences else 0):
            request_id = sequence.request.request_id
            if self._sequences.get(request_id) is not sequence:
                continue
            if output.finish_reason is not None:
                del self._sequences[request_id]
            outputs.append(output)
        return outputs

    @property
    def progress(self) -> int:
        """Changes while the remote answers questions about its health, for some minutes without a token."""
        return self._streams.progress

    def check_health(self) -> None:
        """Raise `EngineDead` if the remote is gone, or does not answer any more."""
        if self._started is not None and self._started.end:
            raise EngineDead(f"the remote engine has ended: {self._started.end}")
        if self._streams.death:
            raise EngineDead(f"the remote engine is gone: {self._streams.death}")

    def close(self) -> None:
        """Close all connections, and end an engine that was started here."""
        self._loop.cancel()  # first, so that nothing is asked after the client is closed
        self._loop.run(self._client.close())
        self._loop.close()
        if self._started is not None:
            self._started.close()


def _where(properties: ServingProperties) -> tuple[str, list[str] | None]:
    """Return the remote's URL, or the command that starts it. Raises `ConfigError`."""
    options = properties.options_of(RemoteOptions)
    if (options.engine_url is None) == (options.engine_command is None):
        raise ConfigError("the remote backend needs either option.engine_url or option.engine_command")
    if options.engine_command is not None:
        return "", engine_command(options.engine_command)
    return engine_url(options.engine_url or ""), None


def _is_operators(options: RemoteOptions) -> bool:
    """Tell whether the remote may have the key."""
    if options.engine_command is not None:
        return is_operators(os.environ, "OPTION_ENGINE_COMMAND", options.engine_command)
    return is_operators(os.environ, "OPTION_ENGINE_URL", options.engine_url or "")


def _nothing() -> None:
    """Does nothing: the server has not started this remote, so there is no process to check."""


async def _connect(url: str, key: str | None, unix_socket: Path | None) -> Client:
    return Client(url, key, unix_socket)
