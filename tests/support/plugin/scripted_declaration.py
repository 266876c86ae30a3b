"""What a third party's backend declares. Imports no engine, not even `scripted_backend`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from lmi_handlers.config.declaration import BackendDeclaration
from lmi_handlers.config.option import Option, PositiveInt


class ScriptedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The backend's own options."""

    scripted_words: Annotated[PositiveInt | None, Option("Maximum number of words of the script.")] = None


DECLARATION = BackendDeclaration(
    name="scripted",
    location="scripted_backend:ScriptedBackend",
    options=ScriptedOptions,
    reads=("max_model_len",),
    rolling_batch=("script",),
    unsupported={"bad_words": "the script is fixed"},
)
