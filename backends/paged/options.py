"""The options of every engine with a paged KV cache of ours, under vLLM's names."""

from __future__ import annotations

from typing import Annotated

import msgspec

from lmi_handlers.config.option import NonNegativeInt, Option

DEFAULT_BATCH_SIZE = 32
DEFAULT_PREFILL_TOKENS = 512
DEFAULT_PREFIX_CACHE_FILE_BYTES = "4G"
DEFAULT_MAX_LORAS = 4
"""LMI's default."""
DEFAULT_MAX_LORA_RANK = 16
"""vLLM's and LMI's default."""


class PagedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the KV cache. An engine's own options inherit these."""

    enable_prefix_caching: Annotated[
        bool | None, Option("Reuses the KV cache of prompts that begin in the same way.")
    ] = None
    prefix_cache_file: Annotated[
        str | None,
        Option(
            "Absolute path of a file that keeps prefixes which several requests have shared, also over a restart (see "
            "kv-cache.md). With several engines, each but the first adds its number to the name."
        ),
    ] = None
    prefix_cache_file_bytes: Annotated[
        str | None, Option("Maximum size of that file, such as `512M`. Defaults to `4G`.")
    ] = None
    prompt_lookup_num_tokens: Annotated[
        NonNegativeInt | None,
        Option(
            "Maximum number of tokens to draft per step for each sequence, by looking for the last tokens in its prompt and "
            "answer. Drafts change no result but by rounding, only how fast it is found. 0, the default, turns them off."
        ),
    ] = None
