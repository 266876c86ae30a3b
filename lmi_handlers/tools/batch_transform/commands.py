"""The command of this folder. What takes long to import is imported in the command, because every `lmi` imports this."""

from __future__ import annotations

from pathlib import Path

import click

from lmi_handlers.tools.client.options import api_key_option


class _Word(click.Choice[str]):
    """A word of SageMaker's API in any of its spellings: MultiRecord, MULTI_RECORD."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(value.replace("_", ""), param, ctx)


@click.command()
@click.option("--input", "source", required=True, help="File, folder, or s3:// URL of an object or a prefix.")
@click.option("--output", "target", required=True, help="Folder or s3:// prefix for the outputs, `<input>.out`.")
@click.option(
    "--url", help="Server to call, such as http://127.0.0.1:8080. By default, a server is started for the job."
)
@click.option(
    "--model-dir",
    type=click.Path(path_type=Path),
    help="Model directory of that server. Defaults to that of `lmi serve`.",
)
@api_key_option
@click.option("--content-type", help="Type of the records. Defaults to what the name of the first file suggests.")
@click.option("--accept", help="Type of the outputs.")
@click.option(
    "--batch-strategy",
    type=_Word(["MultiRecord", "SingleRecord"], case_sensitive=False),
    help="Records per request. Defaults to what the server asks for, or to SingleRecord if records are neither JSON lines "
    "nor CSV.",
)
@click.option(
    "--split-type",
    type=_Word(["None", "Line", "RecordIO", "TFRecord"], case_sensitive=False),
    help="How files are split into records. Defaults to Line for JSON lines and CSV, else to None.",
)
@click.option(
    "--assemble-with",
    type=_Word(["None", "Line"], case_sensitive=False),
    help="What follows each output. Defaults to Line with --split-type Line, else to None.",
)
@click.option(
    "--compression-type", type=_Word(["None", "Gzip"], case_sensitive=False), default="None", show_default=True
)
@click.option(
    "--max-payload-in-mb",
    type=click.IntRange(1, 100),
    help="Maximum size of a request. Defaults to what the server asks for.",
)
@click.option(
    "--max-concurrent-transforms",
    type=click.IntRange(1, 100),
    help="Number of requests at a time. Defaults to what the server asks for.",
)
@click.option(
    "--max-records",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="Maximum number of records of a request. SageMaker has no such limit.",
)
@click.option(
    "--join-source",
    type=_Word(["None", "Input"], case_sensitive=False),
    default="None",
    show_default=True,
    help="Input joins each output with its record.",
)
@click.option("--input-filter", default="$", show_default=True, help="Part of a record that the model gets.")
@click.option("--output-filter", default="$", show_default=True, help="Part of an output, or of a joined one, to keep.")
@click.option(
    "--invocations-max-retries",
    type=click.IntRange(0, 3),
    default=3,
    show_default=True,
    help="How often a request that fails with 5xx or 429 is repeated.",
)
@click.option(
    "--invocations-timeout-in-seconds",
    type=click.IntRange(1, 3600),
    default=600,
    show_default=True,
    help="Maximum time without a byte of an answer.",
)
@click.option(
    "--errors",
    type=click.Choice(["in-place", "fail"]),
    help="What becomes of a record that fails: its error takes the place of its output, or its file fails. Defaults to "
    "in-place if records and outputs are lines.",
)
def transform(
    *,
    source: str,
    target: str,
    url: str | None,
    model_dir: Path | None,
    api_key: str | None,
    **choices: str | int | None,
) -> None:
    """Send the records of files through a model, as a batch transform job of SageMaker does.

    Exits with status 1 if a file has no output.

    Example: lmi transform --model-dir ./model --input records.jsonl --output out/
    """
    import msgspec

    from lmi_handlers.tools.batch_transform.run import run_job
    from lmi_handlers.tools.batch_transform.settings import Choices

    if url is not None and model_dir is not None:
        raise click.UsageError("--url and --model-dir exclude each other: a server that runs has its model")
    known = msgspec.convert(choices, Choices)
    run_job(source=source, target=target, url=url, model_dir=model_dir, api_key=api_key, choices=known)
