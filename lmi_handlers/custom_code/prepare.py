"""Gets what a model's code needs on this machine before any process loads it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import msgspec

from lmi_handlers.config.custom_code import CustomCode
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.load_phase import LoadPhase
from lmi_handlers.custom_code.requirements import with_packages
from lmi_handlers.model_files.cache_dir import default_cache_dir
from lmi_handlers.model_files.fetch import local_model


@contextlib.contextmanager
def prepared(
    code: CustomCode,
    properties: ServingProperties,
    report: Callable[[str], None],
    progress: Callable[[int, int], None],
) -> Iterator[CustomCode]:
    """Yield the code with its packages installed, and with a local folder for a model in S3.

    As in LMI, the code finds that folder in the option `model_id`. The folder stays until the block ends. `report` is
    called with phases, `progress` with the bytes that have arrived and those of the whole download. Raises
    `ConfigError`, or `LoadFailed` if another try may help.
    """
    if code.requirements is not None:
        report(LoadPhase.REQUIREMENTS)
        code = with_packages(code, default_cache_dir(os.environ), report)
    with local_model(properties, report, progress) as local:
        if local is not properties:
            names = code.properties | {"model_id": str(local.model_id)}
            options = code.options and local
            code = msgspec.structs.replace(code, properties=names, options=options)
        yield code
