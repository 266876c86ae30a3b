"""The access keys that the local runtime knows, in the format of AWS's shared credentials file.

[alice]
aws_access_key_id = AKIALOCAL
aws_secret_access_key = ...
"""

from __future__ import annotations

import configparser
from pathlib import Path

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.install import check_installed


def read_access_keys(path: Path) -> dict[str, str]:
    """Return the secret keys by access key id. Raises `ConfigError`, which quotes nothing of the file."""
    check_installed("botocore", extra="aws", needed_by="--local-runtime-keys")
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--local-runtime-keys {path} cannot be read: {type(error).__name__}") from error
    except configparser.Error as error:
        raise ConfigError(f"--local-runtime-keys {path} is not in the format of ~/.aws/credentials") from error
    keys = {
        section["aws_access_key_id"]: section["aws_secret_access_key"]
        for section in (parser[name] for name in parser.sections())
        if section.get("aws_access_key_id") and section.get("aws_secret_access_key")
    }
    if not keys:
        raise ConfigError(f"--local-runtime-keys {path} names no aws_access_key_id with its aws_secret_access_key")
    return keys
