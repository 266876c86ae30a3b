"""The command line of `lmi explain`."""

from __future__ import annotations

import json

import click

from lmi_handlers.tools.client.options import api_key_option, explained


@click.command("explain")
@click.argument("body", required=False)
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, help="Server to ask.")
@click.option("--route", default="/invocations", show_default=True, help="Route that the body is for.")
@click.option("--text", is_flag=True, help="The body is a text/plain one.")
@api_key_option
@click.option("--json", "as_json", is_flag=True, help="Print the server's document.")
@explained
def explain_command(*, body: str | None, url: str, route: str, text: bool, api_key: str | None, as_json: bool) -> None:
    """Tell what a server would do with a request. Nothing is generated.

    BODY is the request's body, @FILE for a file, or - for standard input, which is the default. Exits with status 1 if the
    server would refuse the request.

    Example: lmi explain '{"inputs": "Hello", "parameters": {"top_k": 5}}'
    """
    import msgspec

    from lmi_handlers.core import terminal
    from lmi_handlers.tools.client.answer import parsed, whole
    from lmi_handlers.tools.client.body import read_body
    from lmi_handlers.tools.client.errors import CallRefused
    from lmi_handlers.tools.client.server import InvokeRequest, invoke_url
    from lmi_handlers.tools.explain.report import report

    data = read_body(body)
    given: str | msgspec.Raw
    try:
        given = data.decode() if text else msgspec.json.decode(data, type=msgspec.Raw)  # as it is, with doubled names
    except (ValueError, RecursionError, msgspec.DecodeError) as error:
        cause = "the body is not UTF-8" if text else f"the body is not JSON (--text for a text): {error}"
        raise click.UsageError(cause) from error
    invocation = InvokeRequest(
        body=msgspec.json.encode({"route": route, "body": given}),
        content_type="application/json",
        accept=None,
        parameters={},
    )
    with invoke_url(url, invocation, api_key, route="/explain") as answer:
        found = parsed(whole(answer.parts))
    try:
        if not isinstance(found, dict):
            raise TypeError(type(found))
        lines = [json.dumps(found, indent=2, ensure_ascii=False)] if as_json else [*report(found)]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise CallRefused(f"{url} does not explain requests") from error
    for line in lines:
        terminal.show(line)
