"""Commands of web workers to the manager of models, over its Unix socket. Each connection has one command and one answer."""

from __future__ import annotations

import msgspec

from lmi_handlers.core.errors import LMIError, error_of, told


class Load(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Load the model at `url`. `options` take precedence over its serving.properties.

    Answered once requests are accepted or, unless `waits`, at once.
    """

    name: str
    url: str
    options: dict[str, str] = {}
    waits: bool = True


class Unload(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Refuse further requests for a model and, once those in flight have ended, drop it."""

    name: str


class Wake(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Start the engines of a model that sleeps. Answered once that has begun, or was not necessary."""

    name: str


class Scale(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Load a model again with other options, once its requests in flight have ended. Without any, put it to sleep."""

    name: str
    options: dict[str, str] | None


class Done(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The command has been carried out."""


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The command has failed, with what `lmi_handlers.core.errors.told` returns."""

    error: str
    message: str
    field: str | None = None
    code: str | None = None

    @classmethod
    def of(cls, error: LMIError) -> Refused:
        return cls(*told(error))

    def as_error(self) -> LMIError:
        """Rebuild the error that this message carries."""
        return error_of(self.error, self.message, self.field, self.code)


Command = Load | Unload | Wake | Scale
CommandResult = Done | Refused
