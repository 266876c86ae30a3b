"""Prepares prompts for the engine: renders conversations, tokenises text, loads images and sounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.request import (
    ChatPrompt,
    EncodedPrompt,
    GenerationRequest,
    MediaPrompt,
    PromptContent,
    TextPair,
)
from lmi_handlers.media.images import ImageLoader
from lmi_handlers.media.sounds import SoundLoader
from lmi_handlers.serving.parsed import Parsed
from lmi_handlers.text.bundle import TextBundle
from lmi_handlers.text.chat_template import render_chat
from lmi_handlers.text.tokenizer import Tokenizer


class LoadedText(msgspec.Struct, frozen=True):
    """A worker's knowledge of a loaded engine: its capabilities, the tokenizer and the model's text files."""

    capabilities: Capabilities
    bundle: TextBundle
    tokenizer: Tokenizer

    @property
    def max_listed_tokens(self) -> int:
        """Maximum number of tokens in a list that a route answers or takes: 65,536, unless the model takes more."""
        return max(_LISTED_TOKENS, self.capabilities.max_model_len)


class TokenizedPrompt(msgspec.Struct, frozen=True):
    """A prompt's text and token ids. `token_type_ids` as in `EncodedPrompt`."""

    text: str
    token_ids: list[int]
    token_type_ids: list[int] | None = None


def takes_long(request: GenerationRequest) -> bool:
    """True if encoding a request's texts on the event loop would noticeably delay other clients."""
    prompts = sum(prompt_size(prompt.content) for prompt in request.prompts)
    return prompts + sum(map(len, request.sampling_params.stop)) > LONG


def prompt_size(content: PromptContent) -> int:
    """The cost of encoding a prompt, in plain characters that take as long."""
    if isinstance(content, TextPair):
        return len(content.first) + len(content.second)
    return _chat_size(content) if isinstance(content, ChatPrompt) else len(content)


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


def tokenize_prompts(parsed: Parsed, loaded: LoadedText) -> list[TokenizedPrompt]:
    """Tokenise each prompt. Raises `InvalidRequest` with the field."""
    tokenized = []
    for position, prompt in enumerate(parsed.request.prompts):
        found = _tokenize(parsed, position, prompt.content, loaded)
        ids = found.token_ids
        parsed.check_length(parsed.request, position, len(ids), loaded.capabilities)
        if not ids:
            raise InvalidRequest("has no tokens", field=_prompt_field(parsed, position))
        _check_media_tokens(parsed, position, ids, loaded.bundle)
        if not prompt.has_media:  # the engine replaces the tokens that mark media, which may be outside its vocabulary
            _check_vocabulary(parsed, position, ids, loaded.capabilities)
        tokenized.append(found)
    return tokenized


def _tokenize(parsed: Parsed, position: int, content: PromptContent, loaded: LoadedText) -> TokenizedPrompt:
    request, tokenizer, capabilities = parsed.request, loaded.tokenizer, loaded.capabilities
    # Ignore `truncate` above the model's limit: a prompt that is too long is then refused without encoding all of it.
    truncate = request.truncate if (request.truncate or 0) <= capabilities.max_model_len else None
    if isinstance(content, TextPair):
        if truncate is None:
            for text in (content.first, content.second):
                _check_estimate(parsed, position, text, loaded)
        ids, types = tokenizer.encode_pair(
            content.first, content.second, truncate=truncate, side=request.truncation_side
        )
        return TokenizedPrompt(content.second, ids, types if loaded.bundle.token_type_ids else None)
    if isinstance(content, tuple):
        if truncate is None:
            parsed.check_length(request, position, len(content), capabilities)
        _check_vocabulary(parsed, position, content, capabilities)
        kept = content[:truncate] if request.truncation_side == "right" else content[-(truncate or 0) :]
        ids = list(kept)
        text = tokenizer.decode(ids)
    else:
        text = content if isinstance(content, str) else render_chat(loaded.bundle, content, capabilities.sound_marks)
        if truncate is None:
            _check_estimate(parsed, position, text, loaded)
        if truncate is not None and request.pooling_params is not None:
            return TokenizedPrompt(text, tokenizer.encode_within(text, truncate, request.truncation_side))
        # A chat template writes the special tokens itself.
        ids = tokenizer.encode(text, add_special_tokens=isinstance(content, str), truncate=truncate)
    return TokenizedPrompt(text, ids)


def _check_estimate(parsed: Parsed, position: int, text: str, loaded: LoadedText) -> None:
    """Reject a text that is certain to be too long, without encoding all of it."""
    estimate = loaded.tokenizer.estimate_beyond(text, loaded.capabilities.max_model_len)
    if estimate is not None:
        parsed.check_length(parsed.request, position, estimate, loaded.capabilities)


def _check_vocabulary(parsed: Parsed, position: int, ids: Sequence[int], capabilities: Capabilities) -> None:
    """Reject token ids that the model does not have. A tokenizer may know more tokens than its model."""
    if ids and not (min(ids) >= 0 and max(ids) < capabilities.vocab_size):
        raise InvalidRequest(
            f"token ids must be from 0 to {capabilities.vocab_size - 1}", field=_prompt_field(parsed, position)
        )


def _check_media_tokens(parsed: Parsed, position: int, ids: list[int], bundle: TextBundle) -> None:
    """Reject a prompt with more image, video or audio tokens than images and sounds: some crash the engine."""
    if not bundle.media_tokens:
        return
    prompt = parsed.request.prompts[position]
    sent = {bundle.image_token: len(prompt.images), bundle.audio_token: len(prompt.sounds)}
    for token, token_id in bundle.media_tokens.items():
        if ids.count(token_id) > sent.get(token, 0):
            raise InvalidRequest(
                f"contains {token}, which marks an image, a video or a sound, but none was sent",
                field=_prompt_field(parsed, position),
            )


def _prompt_field(parsed: Parsed, position: int) -> str:
    return f"{parsed.prompt_field}[{position}]" if len(parsed.request.prompts) > 1 else parsed.prompt_field


def encode_prompts(
    request: GenerationRequest,
    tokenized: list[TokenizedPrompt],
    images: ImageLoader,
    sounds: SoundLoader,
    adapter_digests: Mapping[str, str],
) -> list[EncodedPrompt]:
    """Load the images and sounds of the tokenised prompts. Returns the prompts for the engine.

    Raises `InvalidRequest` with the field.
    """
    if request.truncate is not None and any(prompt.has_media for prompt in request.prompts):
        raise InvalidRequest("cannot be combined with images or sounds", field="truncate_prompt_tokens")
    encoded = []
    for prompt, found in zip(request.prompts, tokenized, strict=True):
        media_prompt = None
        if prompt.has_media:
            media_prompt = MediaPrompt(found.text, images.load(prompt.images), sounds.load(prompt.sounds))
        encoded.append(encode_prompt(request, prompt.adapter, found, adapter_digests, media_prompt))
    return encoded


def encode_prompt(
    request: GenerationRequest,
    adapter: str | None,
    found: TokenizedPrompt,
    adapter_digests: Mapping[str, str],
    media_prompt: MediaPrompt | None = None,
) -> EncodedPrompt:
    """Return a tokenised prompt for the engine."""
    digest = None if adapter is None else adapter_digests.get(adapter)
    return EncodedPrompt(found.token_ids, adapter, media_prompt, found.token_type_ids, request.cache_salt, digest)


LONG = 4096
"""Characters that take a few milliseconds to tokenise."""

_LISTED_TOKENS = 65_536
_MESSAGE = 256
"""Characters that take about as long to tokenise as one message takes to render."""
