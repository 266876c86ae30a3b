"""LMI's dialect for embeddings, with `option.task=text-embedding`: `{"inputs": ".." | ["..", ..]}`.

Source: the LMI text embedding user guide.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.lmi.body import parse_inputs
from lmi_handlers.apis.lmi.pooling import LmiPoolingDialect
from lmi_handlers.config.budget import Budget
from lmi_handlers.core.pooling_params import PoolingParams
from lmi_handlers.core.request import Prompt
from lmi_handlers.serving.parsed import ModelFacts, Parsed


class LmiEmbeddingRequest(msgspec.Struct):
    """A text, or a list of texts."""

    # For the document only: `parse_inputs` checks bodies by hand.
    inputs: str | list[str]


class LmiEmbeddingDialect(LmiPoolingDialect):
    """`normalize` is the default of the server."""

    def __init__(self, facts: Callable[[], ModelFacts], *, budget: Budget, normalize: bool) -> None:
        super().__init__(facts, PoolingParams(normalize=normalize), budget=budget)

    def parse(self, payload: Payload) -> Parsed:
        inputs, single, ignored = parse_inputs(payload, self._budget)
        return self._parsed(payload, tuple(Prompt(text, payload.adapter) for text in inputs), ignored, single=single)
