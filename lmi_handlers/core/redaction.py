"""Keeps secrets out of logs, messages and the settings of the engine process.

Names that look like secrets (KEY, TOKEN, ..) are redacted by default. `LMI_REDACTED_KEYS` adds others, as patterns.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from fnmatch import translate
from functools import cache
from typing import Any

from lmi_handlers.core.errors import ConfigError

REDACTED = "******"
VARIABLE = "LMI_REDACTED_KEYS"

_SECRET_NAME = re.compile(r"TOKEN(?!IZER)|SECRET|KEY|PASSW|CREDENTIAL", re.IGNORECASE)
_PLAIN_VALUE = re.compile(r"[+-]?[\d.]+|true|false|", re.IGNORECASE)
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/\s]*@")
_SECRET_IN_TEXT = re.compile(f"{_SECRET_NAME.pattern}|SIGNATURE", re.IGNORECASE)
_NAME = re.compile(r"(?<![\w.-])([\w.-]+)=")
_VALUE = re.compile(r"[^&\s,;]+")
_PATTERN = re.compile(r"[\w.*?-]{1,100}")
_MAX_PATTERNS = 100


def key_patterns(environ: Mapping[str, str]) -> re.Pattern[str] | None:
    """Return what `LMI_REDACTED_KEYS` names: patterns separated by commas, in which `*` stands for any text, in any case.

    None if it names nothing. Raises `ConfigError`.
    """
    patterns = [part.strip() for part in environ.get(VARIABLE, "").split(",") if part.strip()]
    wrong = [pattern for pattern in patterns if not _PATTERN.fullmatch(pattern)]
    if wrong or len(patterns) > _MAX_PATTERNS:
        shown = repr(wrong[0][:100]) if wrong else f"{len(patterns)} patterns"
        raise ConfigError(
            f"{VARIABLE} has value {shown}: must be at most {_MAX_PATTERNS} names, separated by commas, of letters, digits "
            "and _ . - * ?"
        )
    return re.compile("|".join(map(translate, patterns)), re.IGNORECASE) if patterns else None


_configured = cache(lambda: key_patterns(os.environ))
"""This process's patterns."""


def is_hidden(name: str) -> bool:
    """Tell whether the operator has asked that values of this name, or of a part of it between dots, are not shown."""
    patterns = _configured()
    return patterns is not None and any(map(patterns.fullmatch, (name, *name.split("."))))


def is_secret(key: str, text: str) -> bool:
    """Tell whether the name looks like that of a secret, and the text is not just a number or boolean."""
    return bool(_SECRET_NAME.search(key)) and not _PLAIN_VALUE.fullmatch(text)


def redacted(text: str) -> str:
    """Return `text` without credentials in URLs and without the values of `NAME=value` pairs that are secret."""
    text = _URL_CREDENTIALS.sub(f"{REDACTED}@", text)
    parts, end = [], 0
    for name in _NAME.finditer(text):
        if name.start() < end or not (_SECRET_IN_TEXT.search(name[1]) or is_hidden(name[1])):
            continue  # it stands in a value that is hidden, or it is not secret
        if value := _VALUE.match(text, name.end()):
            parts += [text[end : name.end()], REDACTED]
            end = value.end()
    return "".join([*parts, text[end:]])


def without_hidden(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields without the values that are to be hidden, also in the mappings among them."""
    return fields if _configured() is None else {name: _shown(name, value) for name, value in fields.items()}


def _shown(name: str, value: Any) -> Any:
    if is_hidden(name):
        return REDACTED
    return {key: _shown(str(key), item) for key, item in value.items()} if isinstance(value, Mapping) else value
