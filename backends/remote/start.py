"""Waits for the remote engine, finds out what it speaks, and compares its tokens with ours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer

from backends.remote.client import Client, ConnectionFailed, reason
from backends.remote.llama_cpp import LlamaCppProtocol
from backends.remote.protocol import Description, RemoteProtocol
from backends.remote.sglang import SGLangProtocol
from backends.remote.vllm import VLLMProtocol
from lmi_handlers.core.errors import ConfigError, LoadFailed, RequestError

PROTOCOLS: dict[str, type[RemoteProtocol]] = {
    "vllm": VLLMProtocol,
    "sglang": SGLangProtocol,
    "llama.cpp": LlamaCppProtocol,
}

_TRY_INTERVAL = 0.5
_SAY_INTERVAL = 30.0
_TEXT = "The year 2024 had 366 days, wasn't it? (yes) def f(x): return x[1:-1] + 'Straße'"
_TOKENIZER = "tokenizer.json"


async def find_protocol(
    client: Client, name: str, url: str, report: Callable[[str], None], check: Callable[[], None]
) -> tuple[RemoteProtocol, Description]:
    """Wait until the remote answers, however long that takes. Return its protocol and what it says about itself.

    `check` raises an error if waiting makes no sense. Raises `ConfigError` if it answers, and speaks none of the
    protocols, or another one than `name`.
    """
    candidates = [PROTOCOLS[name]()] if name != "auto" else [kind() for kind in PROTOCOLS.values()]
    said = -_SAY_INTERVAL
    while True:
        check()
        try:
            status = (await client.ask(candidates[0].health, seconds=5.0)).status
            cause = f"{candidates[0].health} has status {status}"
            if status < 500:
                for protocol in candidates:
                    if (description := await protocol.describe(client)) is not None:
                        return protocol, description
                raise ConfigError(_not_spoken(name, url))
        except (*ConnectionFailed, RequestError) as error:
            cause = reason(error)
        if time.monotonic() - said > _SAY_INTERVAL:
            said = time.monotonic()
            report(f"{url} does not answer yet: {cause}")
        await asyncio.sleep(_TRY_INTERVAL)


def _not_spoken(name: str, url: str) -> str:
    if name != "auto":
        return f"option.engine_protocol={name}: {url} does not speak {PROTOCOLS[name].title}'s protocol"
    titles = ", ".join(kind.title for kind in PROTOCOLS.values())
    return f"option.engine_protocol=auto: {url} speaks none of the supported protocols: {titles}"


async def compare_tokenizer(client: Client, protocol: RemoteProtocol, description: Description, folder: Path) -> None:
    """Raise `ConfigError` if the remote's tokens are not those of the model in `folder`. It may not say what they are.

    Only what they mean counts: two libraries may cut a text in different places. Raises `LoadFailed` if the remote is
    gone again.
    """
    if not (folder / _TOKENIZER).is_file():
        return
    try:
        tokens = await protocol.tokenize(client, _TEXT)
    except (*ConnectionFailed, RequestError) as error:
        raise LoadFailed(f"the remote engine is gone again: {reason(error)}") from error
    if tokens is None:
        return
    tokenizer = Tokenizer.from_file(str(folder / _TOKENIZER))
    if any(not 0 <= token < tokenizer.get_vocab_size() for token in tokens):
        meant = ""
    else:
        meant = tokenizer.decode(tokens, skip_special_tokens=False)
    if "".join(meant.split()) != "".join(_TEXT.split()):
        raise ConfigError(
            f"option.model_id: the remote engine serves {description.model}, whose tokens are not those of {folder}: "
            "both must be the same model"
        )
