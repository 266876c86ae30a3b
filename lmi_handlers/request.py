"""What every dialect's body is parsed into, and what an engine is handed."""

from __future__ import annotations

import msgspec

from lmi_handlers.sampling_params import SamplingParams


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One client request, typed and validated: no dict of parameters lives past this point.

    `prompts` holds one text for a plain request and several for a list; each of them is sampled `sampling_params.n` times.
    The remaining fields say how the answer is to look; only formatters read them.
    """

    request_id: str
    prompts: tuple[str, ...]
    sampling_params: SamplingParams
    truncate: int | None = None
    stream: bool = False
    details: bool = False
    decoder_input_details: bool = False
    return_full_text: bool = False
    top_n_tokens: int = 0
    ignored_parameters: tuple[str, ...] = ()


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One sequence to generate, as a backend sees it: token ids in, one sampling configuration, `n` always 1."""

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
