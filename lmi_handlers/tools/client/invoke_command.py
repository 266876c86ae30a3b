"""The command line of `lmi invoke`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from lmi_handlers.tools.client.options import api_key_option, check_needed, explained, region_option

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from lmi_handlers.tools.client.continuation import Ask
    from lmi_handlers.tools.client.server import InvokeRequest, StreamedResponse


@click.command("invoke")
@click.argument("body", required=False)
@click.option("--url", help="Server to call directly, such as http://127.0.0.1:8080.")
@click.option("--endpoint-name", help="Endpoint to call on AWS.")
@region_option
@click.option("--content-type", default="application/json", show_default=True)
@click.option("--accept")
@click.option("--target-model", help="Model of a multi-model endpoint.")
@click.option("--target-variant")
@click.option("--component", metavar="NAME", help="Inference component, or an adapter's.")
@click.option("--session-id", help="Session of the request, or NEW_SESSION.")
@click.option("--custom-attributes")
@click.option("--inference-id")
@api_key_option
@click.option("--raw", is_flag=True, help="Print the bytes of the answer as they are.")
@explained
def invoke_command(
    *,
    body: str | None,
    url: str | None,
    endpoint_name: str | None,
    region: str | None,
    api_key: str | None,
    raw: bool,
    **options: Any,
) -> None:
    """Send one request, and print the generated text as it arrives.

    BODY is the request's body, @FILE for a file, or - for standard input, which is the default. Exits with status 1 if the
    request or the generation fails. If a deadline of the server ends the text, another request continues it, unless --raw
    is given.

    Example: lmi invoke --url http://127.0.0.1:8080 '{"inputs": "Hello", "stream": true}'
    """
    from lmi_handlers.tools.client.aws import Aws
    from lmi_handlers.tools.client.body import read_body
    from lmi_handlers.tools.client.endpoint import invoke_endpoint
    from lmi_handlers.tools.client.errors import AnswerTooLong, CallRefused
    from lmi_handlers.tools.client.server import invoke_url

    if (url is None) == (endpoint_name is None):
        raise click.UsageError("exactly one of --url and --endpoint-name is needed")
    if endpoint_name is None:
        check_needed("--endpoint-name", region=region)

    def ask(invocation: InvokeRequest) -> AbstractContextManager[StreamedResponse]:
        if url is not None:
            return invoke_url(url, invocation, api_key)
        # The operation that streams has no target model, and cannot begin a session.
        whole = "TargetModel" in invocation.parameters or invocation.parameters.get("SessionId") == "NEW_SESSION"
        return invoke_endpoint(Aws(region), str(endpoint_name), invocation, streams=not whole)

    invocation = _invocation(read_body(body), options)
    try:
        if raw:
            with ask(invocation) as answer:
                _show_bytes(answer)
        else:
            _show(ask, invocation)
    except AnswerTooLong as error:
        raise CallRefused(f"{error}; --raw prints any answer") from error


def _invocation(body: bytes, options: dict[str, Any]) -> InvokeRequest:
    from lmi_handlers.tools.client.server import InvokeRequest

    names = {
        "target_model": "TargetModel",
        "target_variant": "TargetVariant",
        "component": "InferenceComponentName",
        "session_id": "SessionId",
        "custom_attributes": "CustomAttributes",
        "inference_id": "InferenceId",
    }
    parameters = {aws: options[ours] for ours, aws in names.items() if options[ours] is not None}
    return InvokeRequest(
        body=body, content_type=options["content_type"], accept=options["accept"], parameters=parameters
    )


def _show(ask: Ask, invocation: InvokeRequest) -> None:
    """Print the generated text. Raises `AnswerFailed`."""
    from lmi_handlers.core import terminal
    from lmi_handlers.tools.client.continuation import whole_answer

    @contextmanager
    def asked(invocation: InvokeRequest) -> Iterator[StreamedResponse]:
        with ask(invocation) as answer:
            _show_headers(answer)
            yield answer

    last = ""
    try:
        for piece in whole_answer(asked, invocation):
            if piece.text and not piece.is_reasoning:
                last = piece.text
                terminal.show(last, end="")
    finally:
        if last and not last.endswith("\n"):
            terminal.show()


def _show_bytes(answer: StreamedResponse) -> None:
    """Print the answer as it is. Raises `AnswerFailed`."""
    from lmi_handlers.core import terminal

    _show_headers(answer)
    writer = terminal.ByteWriter()
    for part in answer.parts:
        writer.write(part)


def _show_headers(answer: StreamedResponse) -> None:
    """Print SageMaker's headers to standard error."""
    from lmi_handlers.core import terminal

    for name, value in answer.headers.items():
        terminal.show_error(f"{name}: {value}")
