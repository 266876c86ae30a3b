"""Settings that every process of the server reads by itself: its log, what the log hides, its files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from lmi_handlers.config.environment import Variable
from lmi_handlers.core import redaction


def _patterns(text: str) -> str:
    redaction.key_patterns({redaction.VARIABLE: text})
    return text


class ProcessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of every process, which are checked once, when the server starts."""

    log_format: Annotated[
        Literal["json", "text"] | None,
        Variable(
            "LOG_FORMAT",
            "One JSON object per line, or text. Defaults to `text` if standard error is a terminal, in colour unless "
            "`NO_COLOR` is set, and to `json` otherwise. Lines about the configuration, which begin with `lmi: `, are always "
            "text.",
        ),
    ] = None
    log_level: Annotated[
        str,
        Variable(
            "SAGEMAKER_CONTAINER_LOG_LEVEL",
            "`INFO`, `WARNING` or `ERROR`, or Python's number for it, such as `20`. Other values mean `INFO`.",
            aliases=("LOG_LEVEL",),
        ),
    ] = "INFO"
    redacted_keys: Annotated[
        str,
        Variable(
            redaction.VARIABLE,
            "Names whose values are in no log line and no message, separated by commas, such as `*email*,tenant`.",
            read=_patterns,
        ),
    ] = ""
    code_variables: Annotated[
        str,
        Variable(
            "LMI_CODE_VARIABLES",
            "Credentials that a model's own code gets ([custom-code.md](custom-code.md#environment-variables)).",
        ),
    ] = ""
    cache_dir: Annotated[
        Path | None,
        Variable(
            "LMI_CACHE_DIR",
            "Directory for models from S3, converted models and installed packages. Defaults to `lmi-handlers` in "
            "`$XDG_CACHE_HOME` or `~/.cache`, or to a folder of this user in the temporary directory if that is not "
            "writable.",
            read=Path,
        ),
    ] = None
