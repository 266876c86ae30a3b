"""The options that only remote engines have."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from lmi_handlers.config.option import Option

DEFAULT_BATCH_SIZE = 256
"""The remote engine decides how many of these it runs at the same time."""

KEY_VARIABLE = "LMI_ENGINE_KEY"
"""The environment variable with the remote engine's key."""


class RemoteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Address and protocol of the remote engine."""

    engine_url: Annotated[
        str | None,
        Option(
            "URL of the remote engine, such as `http://10.0.0.7:8000` (see [remote.md](remote.md)). If it wants a key, set "
            f"`{KEY_VARIABLE}` in the environment."
        ),
    ] = None
    engine_command: Annotated[
        str | None,
        Option(
            "Program that is started as the remote engine, in place of `engine_url`, with its arguments. `{port}` stands for "
            "the port at which it is to listen: `vllm serve /opt/ml/model --enable-scale-out --port {port}`. If it can "
            "listen on a Unix socket, `{socket}` stands for its path: `--uds {socket}`."
        ),
    ] = None
    engine_protocol: Annotated[
        Literal["auto", "vllm", "sglang", "llama.cpp"],
        Option("Protocol of the remote engine. `auto` asks it what it is."),
    ] = "auto"
