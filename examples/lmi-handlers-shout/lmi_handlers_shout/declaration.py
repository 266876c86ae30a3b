"""What the server knows about the backend before it loads it. Every process imports this module, so it is light."""

from __future__ import annotations

from typing import Annotated

import msgspec

from lmi_handlers.config.declaration import BackendDeclaration
from lmi_handlers.config.option import Option, PositiveInt


class ShoutOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The backend's own options. `lmi check` and `lmi serve` read and check them like the server's."""

    shout_marks: Annotated[PositiveInt, Option("Number of exclamation marks at the end of an answer.")] = 1


DECLARATION = BackendDeclaration(
    name="shout",
    location="lmi_handlers_shout.backend:ShoutBackend",
    options=ShoutOptions,
    reads=("max_model_len", "max_rolling_batch_size"),
    needs_model=False,
    unsupported={
        "min_tokens": "an answer is as long as its prompt",
        **dict.fromkeys(
            (
                "allowed_token_ids",
                "bad_words",
                "logit_bias",
                "prompt_logprobs",
                "structured_outputs",
                "thinking_token_budget",
                "watermark",
            ),
            "the answer depends on the prompt alone",
        ),
        "adapters": "there is no model to adapt",
    },
)
