"""The manager's side of its socket: each connection has one command and one answer."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable

import msgspec

from lmi_handlers.core.errors import InvalidRequest, LMIError, LoadFailed
from lmi_handlers.models.messages import Command, CommandResult, Done, Refused
from lmi_handlers.workers.channel import Channel, ProtocolError

CarryOut = Callable[[Command], None]
"""Carries out a command. Raises the `LMIError` that the answer says."""

logger = logging.getLogger(__name__)


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
