"""The command of this folder. What takes long to import is imported in the command, because every `lmi` imports this."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lmi_handlers.tools.client.apis import APIS
from lmi_handlers.tools.client.options import api_key_option, explained, model_option, report_options


@click.command()
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, help="The server.")
@click.option(
    "--api",
    type=click.Choice(list(APIS)),
    default="openai-chat",
    show_default=True,
    help="Which API's streams to ask for.",
)
@model_option
@click.option(
    "--concurrency",
    type=click.IntRange(1, 16384),
    help="Number of clients in a closed loop, 1 by default. With --rate, the largest number of unanswered requests.",
)
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Open loop: requests per second, whatever is unanswered."
)
@click.option(
    "--burstiness",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Shape of the gamma distribution of arrivals: 1 is a Poisson process, less has bursts, more is even.",
)
@click.option("--requests", type=click.IntRange(1), default=100, show_default=True, help="Number of requests.")
@click.option("--duration", type=click.FloatRange(0, min_open=True), help="Start no request after so many seconds.")
@click.option("--warm-up", type=click.IntRange(0), default=4, show_default=True, help="Requests before, not reported.")
@click.option("--input-tokens", default="128", show_default=True, help="128, 64:256 (uniform) or normal:128,32.")
@click.option("--output-tokens", default="64", show_default=True, help="Limit of an answer, as --input-tokens.")
@click.option(
    "--dataset",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help='JSON lines with prompts: {"prompt": "..", "output_tokens": 64}. Replaces --input-tokens.',
)
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path, exists=True),
    help="tokenizer.json, or a directory with one, for prompts of exactly --input-tokens.",
)
@click.option("--ignore-eos", is_flag=True, help="Ask for answers of exactly --output-tokens (OpenAI and LMI).")
@click.option(
    "--goodput", multiple=True, metavar="NAME:MS", help="Limit of a good request: ttft, tpot or e2el. May be repeated."
)
@click.option("--timeout", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds for one request.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the prompts, lengths and arrivals.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME:VALUE", help="A header of all requests. May be repeated."
)
@api_key_option
@report_options("the figures")
@explained
def bench(
    *,
    api_key: str | None,
    json_file: Path | None,
    page_file: Path | None,
    goodput: tuple[str, ...],
    headers: tuple[str, ...],
    **given: Any,
) -> None:
    """Send requests to a server as clients would, and report what they wait for.

    The figures are those of `vllm bench serve`.

    Example: lmi bench --api lmi --concurrency 8 --requests 200 --page report.html
    """
    from lmi_handlers.core.install import check_installed

    check_installed("aiohttp", extra="bench")
    from lmi_handlers.tools.bench.run import BenchOptions, parse_goodput, parse_headers, run
    from lmi_handlers.tools.client.server import authorization

    known = authorization(api_key) | parse_headers(headers)
    options = BenchOptions(goodput=parse_goodput(goodput), headers=known, **given)
    run(options, json_file, page_file)
