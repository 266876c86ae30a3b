"""Sends a conversation to a server or an endpoint, and yields the answer's text as it arrives."""

from __future__ import annotations

import json
from collections.abc import Generator
from functools import partial
from typing import Any, Protocol

import msgspec

from lmi_handlers.core.errors import ConfigError
from lmi_handlers.model_files.locate import DEFAULT_MODEL_NAME, DEFAULT_MODEL_TEMPERATURE
from lmi_handlers.tools.chat.conversation import Conversation
from lmi_handlers.tools.client.answer import Piece, parsed, whole
from lmi_handlers.tools.client.apis import APIS, Api, Question
from lmi_handlers.tools.client.aws import Aws
from lmi_handlers.tools.client.continuation import whole_answer
from lmi_handlers.tools.client.endpoint import invoke_endpoint
from lmi_handlers.tools.client.errors import AnswerTooLong, CallRefused
from lmi_handlers.tools.client.server import InvokeRequest, ServerUrl, authorization, invoke_url

_NOT_KNOWN = ("400", "404", "405", "422")
"""Statuses of a server without these routes, or of a model without a chat template."""

_TRANSCRIPT_END = "\nUser:"


class ChatPartner(Protocol):
    """The other side of a chat."""

    def answer(self, conversation: Conversation) -> Generator[Piece, None, None]:
        """Yield the answer. Closing the iterator ends the request. Raises `AnswerFailed` or `CallRefused`."""

    def suggested(self, conversation: Conversation) -> dict[str, Any]:
        """Return the parameters without which the model that is asked makes no sense. Raises nothing."""

    def __str__(self) -> str:
        """Return its name."""


class Server:
    """A server on this network."""

    def __init__(self, url: str, api: str, api_key: str | None) -> None:
        """Raises `ConfigError` for a wrong URL or key."""
        ServerUrl.parse(url)
        authorization(api_key)
        self._url = url.rstrip("/")
        self._api = APIS[api]
        self._key = api_key

    def __str__(self) -> str:
        return self._url

    def answer(self, conversation: Conversation) -> Generator[Piece, None, None]:
        api = self._api
        prompt = None if api.takes_messages else self._templated(conversation)
        ask = partial(invoke_url, self._url, api_key=self._key, route=api.path)
        yield from whole_answer(ask, _invocation(_body(api, conversation, prompt)))

    def suggested(self, conversation: Conversation) -> dict[str, Any]:
        """Return the default model's temperature, if that is the model. Failures are left to the first question."""
        try:
            listed = self._asked("/v1/models", None)
        except (CallRefused, ConfigError):
            return {}
        models = listed.get("data") if isinstance(listed, dict) else None
        names = [each.get("id") for each in models if isinstance(each, dict)] if isinstance(models, list) else []
        asked = conversation.model or next(iter(names), None)
        return {"temperature": DEFAULT_MODEL_TEMPERATURE} if asked == DEFAULT_MODEL_NAME else {}

    def _templated(self, conversation: Conversation) -> str | None:
        """Return the prompt that the server's chat template makes of the conversation, or None if it has no template.

        `/chat_tokenize` and `/tokenize` are TGI's routes. Where a prompt gets its first token from the tokenizer, the
        template's own is left out: a second one makes answers worse.
        """
        model = {"model": conversation.model} if conversation.model else {}
        rendered = self._asked("/chat_tokenize", {"messages": conversation.messages} | model)
        text = rendered.get("templated_text") if isinstance(rendered, dict) else None
        if not isinstance(text, str):
            return None
        match self._asked("/tokenize", {"inputs": text} | model):
            case [{"id": first}, {"id": second, "text": str(written)}, *_] if first == second:
                return text.removeprefix(written)
        return text

    def _asked(self, route: str, body: dict[str, Any] | None) -> Any:
        """Return what a route answers, or None if there is no such route or it does not know our body.

        Without a body, it is a GET.
        """
        method = "GET" if body is None else "POST"
        try:
            with invoke_url(self._url, _invocation(body or {}), self._key, route=route, method=method) as answer:
                return parsed(whole(answer.parts))
        except AnswerTooLong:
            return None
        except CallRefused as refused:
            if refused.code in _NOT_KNOWN:
                return None
            raise


class SageMakerEndpoint:
    """An endpoint on AWS. It has one route only, so APIs that take a prompt get a transcript."""

    def __init__(
        self, name: str, api: str, *, region: str | None, target_model: str | None, component: str | None
    ) -> None:
        """Raises `ConfigError` if an endpoint cannot be asked in this API, or boto3 is missing."""
        self._api = APIS[api]
        if not self._api.on_endpoints:
            usable = ", ".join(sorted(name for name, api in APIS.items() if api.on_endpoints))
            raise ConfigError(f"--api {api} has a route of its own, which an endpoint has not; it takes {usable}")
        self._aws = Aws(region)
        self._name = name
        given = {"TargetModel": target_model, "InferenceComponentName": component}
        self._parameters = {key: value for key, value in given.items() if value is not None}

    def suggested(self, conversation: Conversation) -> dict[str, Any]:  # noqa: ARG002
        """Return nothing: an endpoint's one route does not tell its model."""
        return {}

    def __str__(self) -> str:
        return self._name

    def answer(self, conversation: Conversation) -> Generator[Piece, None, None]:
        # The operation that streams has no target model.
        streams = "TargetModel" not in self._parameters
        invocation = msgspec.structs.replace(_invocation(_body(self._api, conversation)), parameters=self._parameters)
        yield from whole_answer(partial(invoke_endpoint, self._aws, self._name, streams=streams), invocation)


def _body(api: Api, conversation: Conversation, prompt: str | None = None) -> dict[str, Any]:
    """Return the body of a request. Without a prompt, an API that needs one gets a transcript of the conversation."""
    parameters = conversation.parameters
    if prompt is None and not api.takes_messages:
        # The answer ends where the model goes on with the user's part.
        prompt, parameters = _transcript(conversation), {api.stop: [_TRANSCRIPT_END]} | parameters
    return api.body(
        Question(
            messages=conversation.messages,
            prompt=prompt or "",
            model=conversation.model,
            limit=conversation.limit,
            parameters=parameters,
        )
    )


def _transcript(conversation: Conversation) -> str:
    """Return the text of a conversation for a model without a chat template."""
    system = [] if conversation.system is None else [f"{conversation.system}\n"]
    turns = [
        # TGI's answers include what ended them.
        f"{'User' if turn.role == 'user' else 'Assistant'}: {turn.content.removesuffix(_TRANSCRIPT_END)}"
        for turn in conversation.turns
    ]
    return "\n".join([*system, *turns, "Assistant:"])


def _invocation(body: dict[str, Any]) -> InvokeRequest:
    return InvokeRequest(body=json.dumps(body).encode(), content_type="application/json", accept=None, parameters={})
