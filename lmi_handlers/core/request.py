"""Requests: every dialect parses its bodies into them, and the engine receives them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.meter import Meter
from lmi_handlers.core.pooling_params import PoolingParams
from lmi_handlers.core.sampling_params import SamplingParams
from lmi_handlers.core.usage import Owner


class BeamSearchParams(msgspec.Struct, frozen=True, kw_only=True):
    """Beam search settings, with transformers' names and meanings. Validated on construction; raises `InvalidRequest`.

    An answer's score is its log probability divided by its length to the power of `length_penalty`. Values above 0
    favour long answers. `early_stopping` ends the search once `num_beams` answers are complete, even if a better one
    may still be in progress.
    """

    num_beams: int
    length_penalty: float = 1.0
    early_stopping: bool = False

    def __post_init__(self) -> None:
        if not 2 <= self.num_beams <= _MAX_BEAMS:
            raise InvalidRequest(f"must be from 2 to {_MAX_BEAMS}, got {self.num_beams}", field="num_beams")
        if not (math.isfinite(self.length_penalty) and abs(self.length_penalty) <= _MAX_PENALTY):
            raise InvalidRequest(
                f"must be from -{_MAX_PENALTY} to {_MAX_PENALTY}, got {self.length_penalty}", field="length_penalty"
            )


class ImageSource(msgspec.Struct, frozen=True):
    """An image as the client sends it: its URL, and the field of the body that holds it."""

    url: str
    field: str


class SoundSource(msgspec.Struct, frozen=True):
    """A sound as the client sends it: its URL, and the field of the body that holds it."""

    url: str
    field: str


class EncodedImage(msgspec.Struct, frozen=True, array_like=True):
    """An encoded image file. `pixels` is the number that its header states, `field` is where in the body it was."""

    data: bytes
    pixels: int
    field: str


class EncodedSound(msgspec.Struct, frozen=True, array_like=True):
    """A sound's file. `field` is where in the body it was."""

    data: bytes
    field: str


class MediaPrompt(msgspec.Struct, frozen=True, array_like=True):
    """A prompt with images or sounds. `text` has the model's placeholder once for each of them, in the same order.

    Only the model's processor knows how many tokens each of them becomes.
    """

    text: str
    images: list[EncodedImage] = []
    sounds: list[EncodedSound] = []


class RenderedPrompt(msgspec.Struct, frozen=True):
    """A prompt as formatters see it: its text, which a chat template may have rendered, and its tokens.

    With images or sounds, `num_tokens` does not count theirs, and `token_ids` has one token for each.
    """

    text: str
    num_tokens: int
    token_ids: Sequence[int] = ()


class EncodedPrompt(msgspec.Struct, frozen=True, array_like=True):
    """A prompt as the engine receives it. `adapter` names its LoRA adapter, None stands for the model itself.

    `adapter_digest` tells that adapter from others that have had its name, or will.
    With a `media_prompt`, `token_ids` are the ids of its text, with one token per image. `token_type_ids` tells the
    tokens of a `TextPair` apart, if the model's tokenizer does: 0 for the first text, 1 for the second. What an engine
    has computed for a prompt may only be used for prompts with an equal `cache_salt`.
    """

    token_ids: list[int]
    adapter: str | None = None
    media_prompt: MediaPrompt | None = None
    token_type_ids: list[int] | None = None
    cache_salt: str | None = None
    adapter_digest: str | None = None


TEMPLATE_NAMES = frozenset(
    (
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversations",
        "documents",
        "messages",
        "return_assistant_tokens_mask",
        "tools",
    )
)
"""Variables of a chat template that nobody may set but the server."""


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation. The model's chat template renders it to the prompt's text.

    `messages` and `tools` are what chat templates expect: OpenAI's objects, but with a call's arguments as an object. A
    message's content is a string, or with images or sounds a list of `{"type": "text", "text": ".."}`,
    `{"type": "image"}` and `{"type": "audio"}`. `images` and `sounds` are those of all messages, in order. If the
    template does not support tools, `tool_prompt` tells the model how to call one. `template_kwargs` are additional
    variables for the template.
    """

    messages: list[dict[str, Any]]
    images: tuple[ImageSource, ...] = ()
    sounds: tuple[SoundSource, ...] = ()
    tools: list[dict[str, Any]] | None = None
    tool_prompt: str = ""
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: dict[str, Any] = {}


class TextPair(msgspec.Struct, frozen=True):
    """Two texts that a cross-encoder reads together, such as a query and a document."""

    first: str
    second: str


PromptContent = str | tuple[int, ...] | ChatPrompt | TextPair
"""The kinds of a client's prompt: text, token ids, a conversation or two texts."""


class Prompt(msgspec.Struct, frozen=True):
    """A prompt as the client sends it. `adapter` names its LoRA adapter, None stands for the model itself."""

    content: PromptContent
    adapter: str | None = None

    @property
    def images(self) -> tuple[ImageSource, ...]:
        return self.content.images if isinstance(self.content, ChatPrompt) else ()

    @property
    def sounds(self) -> tuple[SoundSource, ...]:
        return self.content.sounds if isinstance(self.content, ChatPrompt) else ()

    @property
    def has_media(self) -> bool:
        return bool(self.images or self.sounds)


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One client request as parsed. From here on, no parameters are passed as a dict.

    Each prompt is sampled `sampling_params.n` times; with `beam_search`, its answers are the `n` best beams. A request
    with a lower `priority` starts sooner. `truncate` is the number of tokens to keep of each prompt, and
    `truncation_side` is where the others are removed. `cache_salt` is that of each prompt.
    `generated` are the tokens that an engine has generated for this request before. The answer continues after them; then
    it has one sequence. `sampling_params` are still those of the whole answer.
    Equal requests with the same `identity` are one that is repeated; its client is the `owner`. `has_random_seed` is set if
    the server has chosen the seed, because the answer shows it. `ignored_parameters` are named in a response header.
    The other fields describe the format of the answer and are for formatters.

    With `pooling_params`, the prompts are embedded or classified and nothing is generated, so `sampling_params` has no
    effect.
    """

    request_id: str
    prompts: tuple[Prompt, ...]
    sampling_params: SamplingParams = SamplingParams()
    pooling_params: PoolingParams | None = None
    priority: int = 0
    identity: bytes | None = None
    owner: Owner = Owner()
    has_random_seed: bool = False
    beam_search: BeamSearchParams | None = None
    truncate: int | None = None
    truncation_side: Literal["left", "right"] = "left"
    cache_salt: str | None = None
    generated: tuple[int, ...] = ()
    stream: bool = False
    details: bool = False
    decoder_input_details: bool = False
    return_full_text: bool = False
    top_n_tokens: int = 0
    ignored_parameters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise `InvalidRequest` for a priority that some engine could not store, or an empty or too long salt."""
        if not -MAX_PRIORITY <= self.priority <= MAX_PRIORITY:
            raise InvalidRequest(
                f"must be from -{MAX_PRIORITY} to {MAX_PRIORITY}, got {self.priority}", field="priority"
            )
        if self.cache_salt is not None and not 1 <= len(self.cache_salt) <= MAX_CACHE_SALT:
            raise InvalidRequest(
                f"must have from 1 to {MAX_CACHE_SALT} characters, got {len(self.cache_salt)}", field="cache_salt"
            )


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to generate, as a backend receives it. `sampling_params.n` is always 1.

    With `pooling_params`, the prompt is embedded or classified instead. Only a backend with `pooling_tasks` gets these.

    `generated` are tokens of this sequence that were generated before, by this engine or by one like it. The sequence
    goes on as if they had been generated here: they count for `max_tokens`, `min_tokens` and penalties, the grammar has
    consumed them, and the random numbers of a `seed` are those of the next token. Outputs have only the tokens after them.
    Only a backend that `continues` gets these.

    `meter` is that of the whole request. A backend that counts its blocks of the KV cache, or that `measures_steps`, adds to it.
    """

    request_id: str
    prompt: EncodedPrompt
    sampling_params: SamplingParams
    priority: int = 0
    pooling_params: PoolingParams | None = None
    generated: tuple[int, ...] = ()
    meter: Meter = msgspec.field(default_factory=Meter)


MAX_PRIORITY = 2**31 - 1
MAX_CACHE_SALT = 256
_MAX_BEAMS = 128  # the same as for `SamplingParams.n`
_MAX_PENALTY = 10  # so that raising any length to this power gives a finite number
