"""vLLM's bodies of `/tokenize`, a prompt or a conversation. TGI's body has `inputs`. Source: vLLM 0.32. null means absent."""

from __future__ import annotations

from typing import Any

import msgspec

from formatters.vllm.schemas import VllmTokenizeResponse
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.decoding import decode_typed, unknown_names
from lmi_handlers.apis.openai.messages import Message
from lmi_handlers.config.budget import Budget
from lmi_handlers.core.errors import InvalidRequest, UnsupportedFeature
from lmi_handlers.core.event_loop import at_once
from lmi_handlers.core.request import ChatPrompt
from lmi_handlers.serving.prompts import LONG, LoadedText, prompt_size
from lmi_handlers.serving.served_model import ServedModel
from lmi_handlers.text.chat_template import render_chat


class TokenizePromptBody(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt. `model` is ignored: adapters have the model's tokenizer."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    def content(self) -> str:
        """Return the prompt."""
        return self.prompt


class TokenizeChatBody(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation. Special tokens come from the chat template, unless `add_special_tokens` is true."""

    messages: list[Message]
    model: str | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    def content(self) -> ChatPrompt:
        """Return the input of the chat template.

        Raises `InvalidRequest` if there are no messages or the options contradict each other.
        """
        if not self.messages:
            raise InvalidRequest("must not be empty", field="messages")
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidRequest("cannot be combined with `add_generation_prompt`", field="continue_final_message")
        continues = bool(self.continue_final_message)
        return ChatPrompt(
            messages=[message.with_links(f"messages[{place}]") for place, message in enumerate(self.messages)],
            tools=self.tools,
            add_generation_prompt=not continues and self.add_generation_prompt is not False,
            continue_final_message=continues,
            template_kwargs=self.chat_template_kwargs or {},
        )


VllmTokenizeBody = TokenizePromptBody | TokenizeChatBody


def is_vllms(payload: Payload) -> bool:
    """Tell whether a body of `/tokenize` is one of vLLM's. Raises `InvalidJson` or `InvalidBody` if it is no object."""
    return "inputs" not in payload.fields and not payload.fields.keys().isdisjoint(("prompt", "messages"))


def read_tokenize(payload: Payload, budget: Budget) -> tuple[VllmTokenizeBody, tuple[str, ...]]:
    """Return the body and the names of its ignored fields. Raises `InvalidRequest`."""
    kind: type[VllmTokenizeBody] = TokenizeChatBody if "messages" in payload.fields else TokenizePromptBody
    ignored = unknown_names(payload.fields, kind, nulls=False)
    body = decode_typed(payload.data, kind)
    if "chat_template" in ignored:
        raise UnsupportedFeature("cannot be set by a request", field="chat_template")
    budget.check_fields(body)
    return body, ignored


def tokenize(model: ServedModel, body: VllmTokenizeBody) -> VllmTokenizeResponse:
    """Return the token ids. Raises `InvalidRequest` if there are too many, and `EngineNotReady`."""
    loaded, content = model.loaded, body.content()
    run = model.run_beside if prompt_size(content) > LONG else at_once
    return run(_tokens, loaded, body, content)


def _tokens(loaded: LoadedText, body: VllmTokenizeBody, content: str | ChatPrompt) -> VllmTokenizeResponse:
    is_chat = isinstance(content, ChatPrompt)
    text = content if isinstance(content, str) else render_chat(loaded.bundle, content)
    limit, ids = loaded.max_listed_tokens, []
    if (tokens := loaded.tokenizer.estimate_beyond(text, limit)) is None:
        special = not is_chat if body.add_special_tokens is None else body.add_special_tokens
        ids = loaded.tokenizer.encode(text, add_special_tokens=special)
        tokens = len(ids)
    if tokens > limit:
        raise InvalidRequest(
            f"must have at most {limit} tokens, got {tokens}", field="messages" if is_chat else "prompt"
        )
    names = [str(loaded.tokenizer.backend.id_to_token(one)) for one in ids] if body.return_token_strs else None
    return VllmTokenizeResponse(len(ids), loaded.capabilities.max_model_len, ids, names)
