"""Ray's errors, which have many lines and hide what a worker has raised."""

from __future__ import annotations

import errno

from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError

_OF_CONSTRUCTOR = "creation task"


def original(error: Exception) -> Exception:
    """Return what a worker has raised while the model was loaded. A lost worker is a lost connection: it may return."""
    if isinstance(error, RayTaskError):
        return error.cause if isinstance(error.cause, Exception) else error
    if isinstance(error, RayActorError):
        return ConnectionResetError(errno.ECONNRESET, f"a worker has died: {cause_of(error)}")
    return error


def cause_of(error: BaseException | None) -> str:
    """Return the cause in one line."""
    if isinstance(error, RayTaskError):
        error = error.cause
    if isinstance(error, ActorUnavailableError):
        return "Ray has lost the connection to it"
    # The first line of the message about an actor says that it has died, and lines with a tab say which.
    lines = [line for line in str(error or "it has ended").splitlines() if line.strip() and not line.startswith("\t")]
    if isinstance(error, RayActorError):
        if _OF_CONSTRUCTOR in lines[0]:  # a traceback follows
            return lines[-1].strip()
        lines = lines[1:] or lines
    return lines[0].strip() if lines else type(error).__name__
