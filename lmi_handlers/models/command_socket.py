"""The socket of the manager of models: each connection has one command and one answer."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from lmi_handlers.core.errors import EngineNotReady, InvalidRequest, LMIError, LoadFailed
from lmi_handlers.models.messages import Command, CommandResult, Done, Refused
from lmi_handlers.models.registry import manager_socket
from lmi_handlers.workers.channel import Channel, ProtocolError

CarryOut = Callable[[Command], None]
"""Carries out a command. Raises the `LMIError` that the answer says."""

_decoder: msgspec.msgpack.Decoder[CommandResult] = msgspec.msgpack.Decoder(CommandResult)

logger = logging.getLogger(__name__)


def ask(runtime_dir: Path, command: Command) -> None:
    """Send a command, and wait until it has been carried out. Raises the error with which it was refused.

    Runs in web workers, where gevent replaces the sockets.
    """
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


def answer(sock: socket.socket, carry_out: CarryOut) -> None:
    """Carry out the command of a connection, answer it and close the connection."""
    channel: Channel[CommandResult, Command] = Channel(sock, msgspec.msgpack.Decoder(Command))
    result: CommandResult = Done()
    try:
        command = next(channel.receive(), None)
        if command is not None:
            carry_out(command)
    except LMIError as error:
        result = Refused.of(error)
    except ProtocolError as error:
        result = Refused.of(InvalidRequest(str(error)))
    except Exception as error:
        logger.exception("a command failed")
        result = Refused.of(LoadFailed(f"{type(error).__name__}: {error}"))
    with contextlib.suppress(OSError):  # nobody waits for the answer
        channel.send(result)
    channel.close()
