"""The command line of `lmi conform`. Every `lmi` imports it, so the rest is imported in the command."""

from __future__ import annotations

from pathlib import Path

import click

from lmi_handlers.tools.client.options import explained, report_options
from lmi_handlers.tools.conform.apis import APIS


@click.command()
@click.argument("url")
@click.option(
    "--api",
    "names",
    metavar="NAME,..",
    default=",".join(APIS),
    show_default=True,
    help="APIs that the server must speak.",
)
@click.option(
    "--accept",
    multiple=True,
    metavar='"API: FEATURE"',
    help="A feature whose difference is known and does not count. May be repeated.",
)
@click.option("--model", help="Name of the model in requests. Defaults to the first one that GET /v1/models lists.")
@click.option("--api-key", envvar="API_KEY", help="Key of the server. Defaults to the variable API_KEY.")
@click.option(
    "--timeout", type=click.FloatRange(0.1, 3600), default=60.0, show_default=True, help="Seconds for one answer."
)
@report_options("the results")
@explained
def conform(
    *,
    url: str,
    names: str,
    accept: tuple[str, ...],
    model: str | None,
    api_key: str | None,
    timeout: float,
    json_file: Path | None,
    page_file: Path | None,
) -> None:
    """Find out which APIs a server speaks, and how exactly.

    Sends the requests with which this project tests itself, and compares the answers with those of the servers whose
    APIs these are: status, content type, fields, types, order of events, errors. Texts are not compared, so any model
    will do. Exits with status 1 if anything that was asked for differs.

    Example: lmi conform --api openai,lmi http://127.0.0.1:8080
    """
    import sys
    import time

    import msgspec

    from lmi_handlers.core import terminal
    from lmi_handlers.core.errors import ConfigError
    from lmi_handlers.core.redaction import redacted
    from lmi_handlers.tools.client.report_files import report_file
    from lmi_handlers.tools.client.server import ServerUrl
    from lmi_handlers.tools.client.signals import ended_by_signals
    from lmi_handlers.tools.conform.report import as_json, as_lines, as_page
    from lmi_handlers.tools.conform.run import AskedServer, model_of, results
    from lmi_handlers.tools.conform.vectors import features

    apis = [name.strip() for name in names.split(",")]
    if unknown := [name for name in apis if name not in APIS]:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(APIS)}", param_hint="--api")
    known = [f"{name}: {feature}" for name in apis for feature in features(name)]
    if unknown := [feature for feature in accept if feature not in known]:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(known)}", param_hint="--accept")
    try:
        server = ServerUrl.parse(url)
    except ConfigError as error:
        raise click.BadParameter(str(error).removeprefix("--"), param_hint="URL") from error
    target = AskedServer(server=server, api_key=api_key, model=model or "", seconds=timeout)
    found = []
    with ended_by_signals(), report_file("--json", json_file) as document, report_file("--page", page_file) as page:
        target = msgspec.structs.replace(target, model=model or model_of(target))
        for result in results(target, apis, frozenset(accept)):
            for line in as_lines(result):
                terminal.show(line)
            found.append(result)
        about = {
            "url": redacted(url),
            "model": target.model,
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        document.write(as_json(found, about))
        page.write(as_page(found, about).encode())
    if not all(result.conforms for result in found):
        sys.exit(1)
