"""What every dialect's body is parsed into, and what an engine is handed."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.sampling_params import SamplingParams


class BeamSearchParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to search with beams, in transformers' words. Validated on construction; raises `InvalidRequest`.

    An answer's score is its logprob divided by its length to the power of `length_penalty`: above 0 favours long ones.
    `early_stopping` ends the search once `num_beams` answers are complete, though a better one may be under way.
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
    """An image as a client gives it: its URL, and where in the body that stands."""

    url: str
    field: str


class EncodedImage(msgspec.Struct, frozen=True, array_like=True):
    """An image as the file that it came in; its header tells of so many `pixels`. `field` is where in the body it was."""

    data: bytes
    pixels: int
    field: str


class ImagePrompt(msgspec.Struct, frozen=True, array_like=True):
    """A prompt with images: `text` has the model's mark for an image once for each of `images`, in their order.

    How many tokens each of them becomes, only the model's processor knows.
    """

    text: str
    images: list[EncodedImage]


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation, of which the model's chat template makes the prompt's text.

    `messages` and `tools` are what templates know: OpenAI's objects, a call's arguments an object, each message's content one
    text, or where it has images a list of `{"type": "text", "text": ".."}` and `{"type": "image"}`. `images` are those of all
    messages in their order. `tool_prompt` tells a model whose template knows no tools how to call one. `template_kwargs` are
    further variables of the template.
    """

    messages: list[dict[str, Any]]
    images: tuple[ImageSource, ...] = ()
    tools: list[dict[str, Any]] | None = None
    tool_prompt: str = ""
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: dict[str, Any] = {}


Prompt = str | tuple[int, ...] | ChatPrompt
"""What a client may send as a prompt: a text, its tokens' ids, or a conversation."""


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One client request, typed and validated: no dict of parameters lives past this point.

    `prompts` holds one text for a plain request and several for a list; each of them is sampled `sampling_params.n` times,
    or with `beam_search` the `n` best beams are its answers. `adapters` names the LoRA adapter of each prompt, None for the
    model itself; empty where no prompt has one. Of those that wait, the lowest `priority` starts first.
    The remaining fields say how the answer is to look; only formatters read them.
    """

    request_id: str
    prompts: tuple[str, ...]
    sampling_params: SamplingParams
    adapters: tuple[str | None, ...] = ()
    priority: int = 0
    beam_search: BeamSearchParams | None = None
    truncate: int | None = None
    stream: bool = False
    details: bool = False
    decoder_input_details: bool = False
    return_full_text: bool = False
    top_n_tokens: int = 0
    ignored_parameters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise `InvalidRequest` for a priority that not every engine could hold."""
        if not -MAX_PRIORITY <= self.priority <= MAX_PRIORITY:
            raise InvalidRequest(
                f"must be from -{MAX_PRIORITY} to {MAX_PRIORITY}, got {self.priority}", field="priority"
            )


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One sequence to generate, as a backend sees it: token ids in, one sampling configuration, `n` always 1.

    Where there is an `image_prompt`, `prompt_token_ids` are its text's, with one token for each image.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    adapter: str | None = None
    priority: int = 0
    image_prompt: ImagePrompt | None = None


MAX_PRIORITY = 2**31 - 1
_MAX_BEAMS = 128  # as `SamplingParams.n`
_MAX_PENALTY = 10  # keeps every length to that power a number
