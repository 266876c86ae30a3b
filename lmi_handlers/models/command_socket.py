"""The manager's side of its socket: each connection has one command and one answer, and a thread of its own."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable

import msgspec

from lmi_handlers.core.errors import InvalidRequest, LMIError, LoadFailed
from lmi_handlers.models.messages import Command, CommandResult, Done, Refused
from lmi_handlers.workers.channel import Channel, ProtocolError

_ACCEPT_PAUSE = 1.0

CarryOut = Callable[[Command], None]
"""Carries out a command. Raises the `LMIError` that the answer says."""

logger = logging.getLogger(__name__)


def accept_one(listener: socket.socket, carry_out: CarryOut) -> None:
    """Wait for a connection, and answer it in a thread."""
    try:
        sock, _ = listener.accept()
    except OSError:  # for example because no file descriptor is left
        logger.exception("a web worker cannot connect to the manager")
        time.sleep(_ACCEPT_PAUSE)
        return
    threading.Thread(target=_answer, args=(sock, carry_out), daemon=True).start()


def _answer(sock: socket.socket, carry_out: CarryOut) -> None:
    channel: Channel[CommandResult, Command] = Channel(sock, msgspec.msgpack.Decoder(Command))
    answer: CommandResult = Done()
    try:
        command = next(channel.receive(), None)
        if command is not None:
            carry_out(command)
    except LMIError as error:
        answer = Refused.of(error)
    except ProtocolError as error:
        answer = Refused.of(InvalidRequest(str(error)))
    except Exception as error:
        logger.exception("a command failed")
        answer = Refused.of(LoadFailed(f"{type(error).__name__}: {error}"))
    with contextlib.suppress(OSError):  # nobody waits for the answer
        channel.send(answer)
    channel.close()
