"""`lmi transform`: runs a job and tells how it went."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

from lmi_handlers.core.errors import ConfigError, LoadFailed
from lmi_handlers.core.log import fail, tell
from lmi_handlers.core.terminal import show_error
from lmi_handlers.model_files.storage import Folder
from lmi_handlers.tools.batch_transform.endpoint import ServerClient, ServerLost
from lmi_handlers.tools.batch_transform.job import FileReport, TransformJob
from lmi_handlers.tools.batch_transform.settings import Choices, ExecutionParameters, settle
from lmi_handlers.tools.batch_transform.storage import find_inputs, open_folder
from lmi_handlers.tools.batch_transform.transform import Transform
from lmi_handlers.tools.client.inputs import InputFile
from lmi_handlers.tools.client.own_server import own_server
from lmi_handlers.tools.client.signals import ended_by_signals


def run_job(
    *, source: str, target: str, url: str | None, model_dir: Path | None, api_key: str | None, choices: Choices
) -> NoReturn:
    """Transform all files of `source`. Exits with status 0, or with 1 if a file has no output."""
    with ended_by_signals():
        try:
            files, folder = find_inputs(source, target), open_folder(target)
            settle(choices, ExecutionParameters(), files[0].name)  # a mistake is told before a model is loaded
            with contextlib.ExitStack() as stack:
                reports = _run(files, folder, url or stack.enter_context(own_server(model_dir)), api_key, choices)
        except (ConfigError, LoadFailed) as error:
            fail(str(error))
        except ServerLost as error:
            tell("error", str(error))
            os._exit(1)  # without waiting for answers
    sys.exit(any(report.failure for report in reports))


def _run(files: list[InputFile], folder: Folder, url: str, api_key: str | None, choices: Choices) -> list[FileReport]:
    endpoint = ServerClient(
        url, api_key, timeout=choices.invocations_timeout_in_seconds, max_retries=choices.invocations_max_retries
    )
    endpoint.wait_until_loaded()
    settings = settle(choices, endpoint.execution_parameters(), files[0].name)
    reports: list[FileReport] = []

    def report(of_file: FileReport) -> None:
        reports.append(of_file)
        _tell(of_file)

    started = time.monotonic()
    TransformJob(Transform(endpoint, settings), settings, folder, report).run(files)
    records, seconds = sum(of_file.records for of_file in reports), time.monotonic() - started
    show_error(f"{records} records of {len(reports)} files in {seconds:.1f} s")
    return reports


def _tell(report: FileReport) -> None:
    if report.failure is not None:
        tell("error", f"{report.name}: {report.failure}")
        return
    line = f"{report.output}: {report.records} records in {report.seconds:.1f} s"
    if report.errors:
        tell("warning", f"{line}, {report.errors} of them failed: their errors are in the place of their output")
    else:
        show_error(line)
