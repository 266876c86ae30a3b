"""Asks the manager of models to load, unload or wake one. Runs in web workers, where gevent replaces the sockets."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec

from lmi_handlers.core.errors import EngineNotReady
from lmi_handlers.models.messages import Command, CommandResult, Refused
from lmi_handlers.models.registry import manager_socket
from lmi_handlers.workers.channel import Channel

_decoder: msgspec.msgpack.Decoder[CommandResult] = msgspec.msgpack.Decoder(CommandResult)


def ask(runtime_dir: Path, command: Command) -> None:
    """Send a command, and wait until it has been carried out. Raises the error with which it was refused."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.connect(str(manager_socket(runtime_dir)))
            channel: Channel[Command, CommandResult] = Channel(sock, _decoder)
            channel.send(command)
        except OSError as error:
            raise EngineNotReady("the manager of models does not answer") from error
        answer = next(channel.receive(), None)
    if answer is None:
        raise EngineNotReady("the manager of models has ended")
    if isinstance(answer, Refused):
        raise answer.as_error()
