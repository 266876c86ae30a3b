"""LMI's dialect for embeddings, with `option.task=text-embedding`: `{"inputs": ".." | ["..", ..]}`.

Source: the LMI text embedding user guide.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from formatters.base import encode
from formatters.lmi.embeddings import VectorsFormatter
from formatters.lmi.responses import LmiError
from lmi_handlers.apis.base import Dialect, Payload, Reply
from lmi_handlers.apis.lmi.body import parse_inputs
from lmi_handlers.apis.lmi.dialect import FIXED_HEADERS, status_of
from lmi_handlers.config.budget import Budget
from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.pooling_params import PoolingParams
from lmi_handlers.core.request import GenerationRequest, Prompt
from lmi_handlers.serving.parsed import ModelFacts, Parsed


class LmiEmbeddingRequest(msgspec.Struct):
    """A text, or a list of texts."""

    # For the document only: `parse_inputs` checks bodies by hand.
    inputs: str | list[str]


class LmiEmbeddingDialect(Dialect):
    """Each text is truncated to what the model takes, as in LMI. `normalize` is the default of the server."""

    error_type = LmiError
    fixed_headers = FIXED_HEADERS

    def __init__(self, facts: Callable[[], ModelFacts], *, budget: Budget, normalize: bool) -> None:
        self._facts = facts
        self._budget = budget
        self._normalize = normalize

    def parse(self, payload: Payload) -> Parsed:
        inputs, single, ignored = parse_inputs(payload, self._budget)
        request = GenerationRequest(
            request_id=payload.request_id,
            prompts=tuple(Prompt(text, payload.adapter) for text in inputs),
            pooling_params=PoolingParams(normalize=self._normalize),
            truncate=self._facts().capabilities.max_input_tokens,
            truncation_side="right",
            ignored_parameters=ignored,
        )
        return Parsed(request, partial(VectorsFormatter, single=single), str)

    def error(self, error: LMIError) -> Reply:
        """Render `{"error":"<cause>","code":424}`."""
        status = status_of(error)
        return Reply(status, encode(LmiError(str(error), status)))
