"""Shared by LMI's dialects for embeddings and for scores."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from formatters.base import encode
from formatters.lmi.embeddings import VectorsFormatter
from formatters.lmi.schemas import LmiError
from lmi_handlers.apis.base import Dialect, Payload, Reply
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
