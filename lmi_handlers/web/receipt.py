"""The receipt of a request: its tokens, and the time that it has taken of the engine. For the log and for its client."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from hashlib import blake2b

from lmi_handlers.core.redaction import REDACTED, is_secret
from lmi_handlers.core.usage import Usage

MAX_TENANT = 64
"""Characters of a tenant's name that are kept."""

_SECRET_HEADERS = ("authorization", "proxy-authorization", "cookie")
"""Headers that are secret although their names do not look like it."""

_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


def receipt(usage: Usage) -> dict[str, int | float | None]:
    """Return the items of a receipt. Those that are not known are None, or missing if only some engines know them.

    Tokens are those that the request received. The engine's time and memory are its share of the cost.
    """
    charged = usage.charged()
    items: dict[str, int | float | None] = {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "generated_tokens": usage.generated_tokens,
        "queue_ms": milliseconds(usage.queue_time),
        "engine_ms": milliseconds(charged.engine_time),
    }
    if usage.kv_block_time is not None:
        items["kv_block_seconds"] = round(charged.kv_block_seconds, 3)
    elif usage.kv_block_estimate is not None:
        items["kv_block_seconds_estimate"] = round(charged.kv_block_seconds, 3)
    return items


def receipt_attributes(usage: Usage, *, complete: bool) -> dict[str, str]:
    """Return the receipt as custom attributes. Unless the answer is `complete`, only what does not change any more."""
    items = receipt(usage)
    if not complete:
        items = {name: items[name] for name in ("prompt_tokens", "cached_tokens", "queue_ms")}
    return {f"x-lmi-{name.replace('_', '-')}": str(value) for name, value in items.items() if value is not None}


def tenant_of(name: str, attributes: Mapping[str, str], header: Callable[[str], str | None]) -> tuple[str, str]:
    """Return the value of the custom attribute `name`, or else of this header, as it may be logged, and its digest.

    Both are "" for none. Values that look equal in the log have other digests.
    """
    value = (attributes.get(name) or header(name) or "").strip()
    if not value:
        return "", ""
    secret = name.lower() in _SECRET_HEADERS or is_secret(name, value)
    shown = REDACTED if secret else _UNPRINTABLE.sub("?", value)[:MAX_TENANT]
    return shown, blake2b(value.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def milliseconds(seconds: float | None) -> float | None:
    """Return the milliseconds, rounded for people."""
    return None if seconds is None else round(seconds * 1000, 1)
