"""The command line of `lmi replay`. What takes long to import is imported in the command, because every `lmi` imports this."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from lmi_handlers.tools.client.options import api_key_option, check_needed, region_option, report_options

_CANNOT = 2
"""The exit status where nothing could be replayed, which is also click's for wrong options."""


@click.command()
@click.option(
    "--input",
    "source",
    required=True,
    help="Data Capture's JSON lines, or a folder of requests: a file, a folder, or an s3:// URL of an object or a prefix.",
)
@click.option(
    "--model-dir", type=click.Path(path_type=Path), help="Start a server for this model directory, and ask that."
)
@click.option("--url", help="Server to ask, such as http://127.0.0.1:8080.")
@click.option("--endpoint-name", help="Endpoint to ask on AWS.")
@region_option
@click.option("--accept", help="Type of the answers to ask for. By default, no header Accept is sent.")
@api_key_option
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1024),
    help="Largest number of unanswered requests. Defaults to 8, or to 64 with --speed.",
)
@click.option(
    "--speed",
    type=click.FloatRange(0, 1e6, min_open=True),
    help="Send requests at the times of the recording, so many times as fast. By default, one follows another.",
)
@click.option(
    "--allow",
    multiple=True,
    metavar="OUTCOME:LIMIT",
    help="Largest number or share of requests with an outcome, such as text:3 or text:1%. May be repeated.",
)
@click.option("--ignore", multiple=True, metavar="FIELD", help="Field that is not compared. May be repeated.")
@click.option("--compare-sampled", is_flag=True, help="Compare the texts of sampled answers, too.")
@report_options("the report")
def replay(**given: Any) -> None:
    """Send recorded requests to a server, and compare its answers with the recorded ones.

    Exits with status 0 for a go and 1 for a no-go: an outcome is more frequent than --allow says. 2 means that nothing
    could be replayed.

    Example: lmi replay --input capture/ --model-dir ./model --page report.html
    """
    from lmi_handlers.core.errors import LMIError
    from lmi_handlers.core.log import tell
    from lmi_handlers.tools.client.errors import CallRefused
    from lmi_handlers.tools.replay.run import ReplayOptions, run

    if sum(given[name] is not None for name in ("model_dir", "url", "endpoint_name")) != 1:
        raise click.UsageError("exactly one of --model-dir, --url and --endpoint-name is needed")
    if given["endpoint_name"] is None:
        check_needed("--endpoint-name", region=given["region"])
    try:
        go = run(ReplayOptions(**given))
    except (LMIError, CallRefused, OSError) as error:
        for line in str(error).splitlines():
            tell("error", line)
        sys.exit(_CANNOT)
    sys.exit(0 if go else 1)
