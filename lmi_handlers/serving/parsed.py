"""Parsed bodies of the APIs, for serving to answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from formatters.base import Formatter
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.request import GenerationRequest, RenderedPrompt
from lmi_handlers.serving.custom_formatters import RecordRewriter
from lmi_handlers.text.infill import InfillFormat


class ModelFacts(msgspec.Struct, frozen=True):
    """Facts about the loaded model for dialects. `model_id` is its public name.

    `prompts` are texts to put in front of a text that is embedded, by their names, such as "query". `sampling_defaults` are
    fields of `SamplingParams` for requests in an API without defaults of its own. With `infill`, the model can fill in the
    middle of a text, after which it writes one of `infill_ends`.
    """

    model_id: str
    chat_template: str
    capabilities: Capabilities
    prompts: dict[str, str] = {}
    sampling_defaults: dict[str, Any] = {}
    infill: InfillFormat | None = None
    infill_ends: tuple[int, ...] = ()


LengthCheck = Callable[[GenerationRequest, int, int, Capabilities], None]
"""`(request, position, tokens, capabilities)`: raises `InvalidRequest` if the prompt at `position` is too long."""


FormatterFactory = Callable[[GenerationRequest, tuple[RenderedPrompt, ...]], Formatter]
"""A formatter class, or a partial of one that already has its options."""


def check_length(request: GenerationRequest, position: int, tokens: int, capabilities: Capabilities) -> None:
    """Raise `InvalidRequest` if the prompt is too long or leaves no room for an answer.

    An answer that would not fit in full is not an error: it ends where the room ends.
    """
    field = "inputs" if len(request.prompts) == 1 else f"inputs[{position}]"
    if tokens > capabilities.max_input_tokens:
        raise InvalidRequest(
            f"must have at most {capabilities.max_input_tokens} tokens, got {tokens}; prompt and answer together may "
            f"have {capabilities.max_model_len}",
            field=field,
        )


class Parsed(msgspec.Struct, frozen=True):
    """A parsed body: the request and its formatter. `alias` returns the client's name for a field of `SamplingParams`.

    `check_length` is called for each prompt once its tokens have been counted. `prompt_field` is the body field that
    the prompts come from. `shows_prompt_ids` is set if the answer has the prompt's token ids with each sequence, and
    `prompt_copies` is how often it has the prompt's text, unless the request's `return_full_text` says that each does.
    `rewriter` replaces what the formatter writes. `on_complete` is called with the whole text before an answer of one
    sequence ends; its error becomes that of the answer. `continuation` is the token of the answer that this one continues.
    """

    request: GenerationRequest
    formatter: FormatterFactory
    alias: Callable[[str], str]
    check_length: LengthCheck = check_length
    prompt_field: str = "inputs"
    shows_prompt_ids: bool = False
    rewriter: RecordRewriter | None = None
    on_complete: Callable[[str], None] | None = None
    continuation: str | None = None
    prompt_copies: int = 0


Change = Callable[[Parsed], Parsed]
"""Changes a request once its body is known to be valid."""


def unchanged(parsed: Parsed) -> Parsed:
    """Return the request as it is."""
    return parsed
