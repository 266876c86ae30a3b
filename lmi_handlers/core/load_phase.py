"""The phases of loading an engine. The log, `/ping` and the metric `lmi_load_seconds` all use these words."""

from __future__ import annotations

import enum


class LoadPhase(str, enum.Enum):
    """A phase of a load. The order is the usual one; a backend may skip phases and return to earlier ones.

    STARTING is the time before the engine process does anything: on the first load since `lmi serve` was called, after
    that since the supervisor started the process.
    """

    STARTING = "starting"
    IMPORTING = "importing the engine"
    REQUIREMENTS = "installing requirements"
    MODEL = "preparing the model"
    """Locating it, and downloading or converting it if necessary."""

    TOKENIZER = "preparing the tokenizer"
    RESOURCES = "waiting for resources"
    """Of a cluster. This time does not count towards the limit of a load."""

    WEIGHTS = "loading weights"
    COMPILING = "compiling the model"
    CHECKING = "checking the model"
    WARM_UP = "warming up"

    def __str__(self) -> str:
        return self.value
