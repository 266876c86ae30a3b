"""The command line of `lmi chat`. What takes long to import is imported in the command, because every `lmi` imports this."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lmi_handlers.tools.client.apis import APIS
from lmi_handlers.tools.client.options import api_key_option, check_needed, explained, model_option, region_option


@click.command("chat")
@click.option("--url", help="The server. Defaults to http://127.0.0.1:8080.")
@click.option("--endpoint", metavar="NAME", help="Endpoint on AWS, instead of --url.")
@region_option
@click.option("--target-model", help="Model of a multi-model endpoint.")
@click.option("--component", metavar="NAME", help="Inference component of the endpoint, or an adapter's.")
@click.option(
    "--api",
    type=click.Choice(list(APIS)),
    default="openai-chat",
    show_default=True,
    help="The API in which to ask.",
)
@model_option
@click.option("--system", metavar="TEXT", help="System prompt.")
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A parameter of each request. May be repeated."
)
@api_key_option
@click.option(
    "--history-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Keep what you type in this file, for the arrow keys of the next chat.",
)
@explained
def chat(
    *,
    url: str | None,
    endpoint: str | None,
    region: str | None,
    target_model: str | None,
    component: str | None,
    api: str,
    model: str,
    system: str | None,
    settings: tuple[str, ...],
    api_key: str | None,
    history_file: Path | None,
) -> None:
    """Chat with a model in the terminal.

    Ctrl-C stops an answer. /help lists the commands. If standard input is no terminal, each of its lines is asked, and only
    the answers are printed; then the exit status is 1 if anything failed.

    Examples: lmi chat --api tgi, lmi chat --endpoint my-model --system 'Answer in one sentence.'
    """
    from lmi_handlers.tools.chat.conversation import Conversation, parse_setting
    from lmi_handlers.tools.chat.server import SageMakerEndpoint, Server
    from lmi_handlers.tools.chat.session import run

    if url is not None and endpoint is not None:
        raise click.UsageError("--url and --endpoint are alternatives")
    chosen: Any
    if endpoint is None:
        check_needed("--endpoint", region=region, target_model=target_model, component=component)
        chosen = Server(url or "http://127.0.0.1:8080", api, api_key)
    else:
        chosen = SageMakerEndpoint(endpoint, api, region=region, target_model=target_model, component=component)
    conversation = Conversation(model=model, system=system or None)
    for setting in settings:
        name, value = parse_setting(setting, "=")
        if value is None:
            raise click.UsageError(f"--set {name} has no value")
        conversation.set(name, value)
    run(chosen, conversation, history_file)
