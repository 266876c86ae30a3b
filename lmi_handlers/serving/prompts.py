"""Prepares prompts for the engine: renders conversations, tokenises text, loads images."""

from __future__ import annotations

from typing import Any

import msgspec

from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.request import ChatPrompt, GenerationRequest, ImagePrompt, Prompt
from lmi_handlers.media.images import ImageLoader
from lmi_handlers.serving.parsed import Parsed
from lmi_handlers.text.bundle import TextBundle
from lmi_handlers.text.chat_template import render_chat
from lmi_handlers.text.tokenizer import Tokenizer


class LoadedText(msgspec.Struct, frozen=True):
    """What a worker knows about a loaded engine: its capabilities, the tokenizer and the model's text files."""

    capabilities: Capabilities
    bundle: TextBundle
    tokenizer: Tokenizer


def takes_long(parsed: Parsed) -> bool:
    """Whether encoding a request's texts on the event loop would noticeably delay other clients."""
    prompts = parsed.prompts or parsed.request.prompts
    return sum(map(prompt_size, prompts)) + sum(map(len, parsed.request.sampling_params.stop)) > LONG


def prompt_size(prompt: Prompt) -> int:
    """The cost of encoding a prompt, in plain characters that take as long."""
    return _chat_size(prompt) if isinstance(prompt, ChatPrompt) else len(prompt)


def _chat_size(chat: ChatPrompt) -> int:
    """The cost of a conversation. Tools and documents always count as long, because measuring them takes time."""
    if chat.tools or chat.documents:
        return LONG + 1
    return sum(map(_message_size, chat.messages)) + sum(map(_value_size, chat.template_kwargs.values()))


def _message_size(message: dict[str, Any]) -> int:
    return _MESSAGE + sum(map(_value_size, message.values()))


def _value_size(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list) and all(isinstance(part, dict) and part.keys() <= {"type", "text"} for part in value):
        return sum(len(part.get("text", "")) for part in value)
    return LONG if isinstance(value, list | dict) else 0


def encode_prompts(parsed: Parsed, loaded: LoadedText) -> tuple[GenerationRequest, list[list[int]]]:
    """Return the request with rendered prompts, and their token ids. Raises `InvalidRequest` with the field."""
    request = parsed.request
    prompts = parsed.prompts or request.prompts
    texts, token_ids = [], []
    for position, prompt in enumerate(prompts):
        text, ids = _encode_prompt(parsed, position, prompt, loaded)
        parsed.check_length(request, position, len(ids), loaded.capabilities)
        if not ids:
            raise InvalidRequest("has no tokens", field=_prompt_field(parsed, position))
        _check_media_tokens(parsed, position, ids, loaded.bundle)
        texts.append(text)
        token_ids.append(ids)
    return msgspec.structs.replace(request, prompts=tuple(texts)) if parsed.prompts else request, token_ids


def _encode_prompt(parsed: Parsed, position: int, prompt: Prompt, loaded: LoadedText) -> tuple[str, list[int]]:
    request, tokenizer, limit = parsed.request, loaded.tokenizer, loaded.capabilities.max_model_len
    # Ignore `truncate` above the model's limit: a prompt that is too long is then refused without encoding all of it.
    truncate = request.truncate if (request.truncate or 0) <= limit else None
    if isinstance(prompt, tuple):
        if truncate is None:
            parsed.check_length(request, position, len(prompt), loaded.capabilities)
        if prompt and not (min(prompt) >= 0 and max(prompt) < loaded.capabilities.vocab_size):
            raise InvalidRequest(
                f"has token ids outside the model's 0 to {loaded.capabilities.vocab_size - 1}",
                field=_prompt_field(parsed, position),
            )
        ids = list(prompt if truncate is None else prompt[-truncate:])
        text = tokenizer.decode(ids)
    else:
        text = prompt if isinstance(prompt, str) else render_chat(loaded.bundle, prompt)
        if truncate is None:
            estimate = tokenizer.estimate_beyond(text, limit)
            if estimate is not None:
                parsed.check_length(request, position, estimate, loaded.capabilities)
        # A chat template writes the special tokens itself.
        ids = tokenizer.encode(text, add_special_tokens=isinstance(prompt, str), truncate=truncate)
    return text, ids


def _check_media_tokens(parsed: Parsed, position: int, ids: list[int], bundle: TextBundle) -> None:
    """Refuse a prompt with more image, video or audio tokens than images: some crash the engine."""
    prompt = parsed.prompts[position] if parsed.prompts else None
    images = len(prompt.images) if isinstance(prompt, ChatPrompt) else 0
    for token, token_id in bundle.media_tokens.items():
        if ids.count(token_id) > (images if token == bundle.image_token else 0):
            raise InvalidRequest(
                f"has {token}, which stands for an image, a video or a sound, where there is none",
                field=_prompt_field(parsed, position),
            )


def _prompt_field(parsed: Parsed, position: int) -> str:
    several = len(parsed.prompts or parsed.request.prompts) > 1
    return f"{parsed.prompt_field}[{position}]" if several else parsed.prompt_field


def load_images(parsed: Parsed, request: GenerationRequest, loader: ImageLoader) -> list[ImagePrompt | None]:
    """Return each prompt with its images (None without any), or an empty list if no prompt has images.

    `request` is what `encode_prompts` returned. Raises `InvalidRequest` with the field.
    """
    sources = [prompt.images if isinstance(prompt, ChatPrompt) else () for prompt in parsed.prompts]
    if not any(sources):
        return []
    if request.truncate is not None:
        raise InvalidRequest("cannot be combined with images", field="truncate_prompt_tokens")
    return [
        ImagePrompt(text, loader.load(images)) if images else None
        for text, images in zip(request.prompts, sources, strict=True)
    ]


LONG = 4096
"""Characters that take a few milliseconds to tokenise."""

_MESSAGE = 256
"""Characters that take about as long to tokenise as one message takes to render."""
