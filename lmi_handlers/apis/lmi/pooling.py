"""LMI's dialect for embeddings, and what it shares with that for scores.

Source: the LMI text embedding user guide.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from formatters.base import encode
from formatters.lmi.embeddings import VectorsFormatter
from formatters.lmi.schemas import LmiError
from lmi_handlers.apis.base import Dialect, Payload, Reply
from lmi_handlers.apis.lmi.body import parse_inputs
from lmi_handlers.apis.lmi.dialect import FIXED_HEADERS, status_of
from lmi_handlers.config.budget import Budget
from lmi_handlers.core.errors import LMIError
from lmi_handlers.core.pooling_params import PoolingParams
from lmi_handlers.core.request import GenerationRequest, Prompt
from lmi_handlers.serving.parsed import ModelFacts, Parsed


class LmiPoolingDialect(Dialect):
    """Each text, or pair of texts, is truncated to what the model takes, as in LMI."""

    error_type = LmiError
    fixed_headers = FIXED_HEADERS

    def __init__(self, facts: Callable[[], ModelFacts], params: PoolingParams, *, budget: Budget) -> None:
        self._facts = facts
        self._params = params
        self._budget = budget

    def error(self, error: LMIError) -> Reply:
        """Render `{"error":"<cause>","code":424}`."""
        status = status_of(error)
        return Reply(status, encode(LmiError(str(error), status)))

    def _parsed(
        self, payload: Payload, prompts: tuple[Prompt, ...], ignored: tuple[str, ...], *, single: bool
    ) -> Parsed:
        request = GenerationRequest(
            request_id=payload.request_id,
            prompts=prompts,
            pooling_params=self._params,
            truncate=self._facts().capabilities.max_input_tokens,
            truncation_side="right",
            ignored_parameters=ignored,
        )
        return Parsed(request, partial(VectorsFormatter, single=single), str)


class LmiEmbeddingRequest(msgspec.Struct):
    """A text, or a list of texts."""

    # For the document only: `parse_inputs` checks bodies by hand.
    inputs: str | list[str]


class LmiEmbeddingDialect(LmiPoolingDialect):
    """`{"inputs": ".." | ["..", ..]}`, with `option.task=text-embedding`. `normalize` is the default of the server."""

    def __init__(self, facts: Callable[[], ModelFacts], *, budget: Budget, normalize: bool) -> None:
        super().__init__(facts, PoolingParams(normalize=normalize), budget=budget)

    def parse(self, payload: Payload) -> Parsed:
        inputs, single, ignored = parse_inputs(payload, self._budget)
        return self._parsed(payload, tuple(Prompt(text, payload.adapter) for text in inputs), ignored, single=single)
