"""Keeps secrets out of logs, messages and the settings of the engine process."""

from __future__ import annotations

import re

REDACTED = "******"

_SECRET_NAME = re.compile(r"TOKEN(?!IZER)|SECRET|KEY|PASSW|CREDENTIAL", re.IGNORECASE)
_PLAIN_VALUE = re.compile(r"[+-]?[\d.]+|true|false|", re.IGNORECASE)
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/\s]*@")
_SECRET_PAIR = re.compile(
    r"([\w.-]*(?:TOKEN(?!IZER)|SECRET|KEY|PASSW|CREDENTIAL|SIGNATURE)[\w.-]*=)[^&\s,;]+", re.IGNORECASE
)


def is_secret(key: str, text: str) -> bool:
    """Tell whether the name looks like that of a secret, and the text is not just a number or boolean."""
    return bool(_SECRET_NAME.search(key)) and not _PLAIN_VALUE.fullmatch(text)


def redacted(text: str) -> str:
    """Return `text` without credentials in URLs and without the values of `NAME=value` pairs that look secret."""
    return _SECRET_PAIR.sub(rf"\1{REDACTED}", _URL_CREDENTIALS.sub(f"{REDACTED}@", text))
