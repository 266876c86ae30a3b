"""The settings of the manager of models. The arbiter, which must not import the manager itself, sends them to it."""

from __future__ import annotations

import msgspec

from lmi_handlers.config.store_settings import StoreSettings


class ManagerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The first line on the manager's standard input, as JSON.

    `drain_seconds` is how long requests in flight may take when their model is unloaded.
    """

    runtime_dir: str
    store: StoreSettings
    started: float
    drain_seconds: float
