"""LMI's API: it answers on the invoke routes and has no routes of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from formatters import load_formatter_class
from formatters.lmi import schemas
from formatters.lmi.examples import ANSWERS
from lmi_handlers.apis.api import Api, Context
from lmi_handlers.apis.documentation import (
    GUIDED_BOUNDS,
    NON_EMPTY_TEXT,
    PROMPT_EXAMPLE,
    QUESTION,
    REQUEST_BOUNDS,
    Bounds,
    Documentation,
    parameter_bounds,
)
from lmi_handlers.apis.lmi.body import LmiParameters
from lmi_handlers.apis.lmi.dialect import LmiDialect
from lmi_handlers.apis.lmi.dynamic import LmiDynamicDialect
from lmi_handlers.apis.lmi.pooling import LmiEmbeddingDialect, LmiEmbeddingRequest
from lmi_handlers.apis.lmi.ranking import LmiRankingDialect, LmiRankingRequest
from lmi_handlers.apis.routes import EVENTS, JSON, JSON_LINES, Route, Types, generation


class LmiRequest(msgspec.Struct):
    """A prompt, or a list of prompts. `adapters` is one name for all prompts, or a list with one name per prompt."""

    # For the document only: `parse_body` checks bodies by hand.
    inputs: str | list[str]
    parameters: LmiParameters = LmiParameters()
    stream: bool | None = None
    adapters: str | list[str | None] | None = None


def _parameter_bounds() -> Bounds:
    """Return the bounds of `SamplingParams` under LMI's names, and the bounds of LMI's own fields."""
    bounds = parameter_bounds(LmiParameters)
    seed = {**bounds["seed"], "pattern": "^[0-9]{1,19}$"}
    return {
        **bounds,
        "seed": seed,
        "random_seed": seed,
        "num_beams": {"minimum": 1, "maximum": bounds["n"]["maximum"]},
        "truncate": {"minimum": 1},
        "length_penalty": {"minimum": -10, "maximum": 10},
        "len_penalty": {"minimum": -10, "maximum": 10},
        "prompt_logprobs": {"minimum": 0},  # only the prompt tokens' own are shown
        **GUIDED_BOUNDS,
        **REQUEST_BOUNDS,
    }


_INPUTS: Mapping[str, Any] = {"minLength": 1, "minItems": 1, "items": NON_EMPTY_TEXT}


class LmiApi(Api):
    """The rolling-batch schema, or the dynamic-batch schema with `option.rolling_batch=disable`.

    With `option.task=text-embedding` or `text-ranking`, the schema for embeddings or scores.
    """

    documentation = Documentation(
        examples={
            **ANSWERS,
            LmiRequest: PROMPT_EXAMPLE,
            LmiEmbeddingRequest: {"inputs": QUESTION},
            LmiRankingRequest: {"query": QUESTION, "texts": [QUESTION]},
        },
        bounds={
            "LmiRequest": {"inputs": _INPUTS},
            "LmiEmbeddingRequest": {"inputs": _INPUTS},
            "LmiParameters": _parameter_bounds(),
        },
    )

    def __init__(self, context: Context) -> None:
        properties = context.properties
        if properties.embeds:
            embedding = LmiEmbeddingDialect(context.facts, budget=context.budget, normalize=properties.normalize)
            self.native = generation(embedding, LmiEmbeddingRequest, {JSON: (list[float], list[list[float]])})
            return
        if properties.ranks:
            ranking = LmiRankingDialect(context.facts, budget=context.budget)
            self.native = generation(ranking, LmiRankingRequest, {JSON: (list[float], list[list[float]])})
            return
        answers: dict[str, Types]
        dialect: LmiDialect | LmiDynamicDialect
        if properties.rolling:
            dialect = LmiDialect(properties, context.sampled_defaults)
            record = (schemas.LmiRecord,)
            one = (schemas.LmiResponse, schemas.LmiBestOfResponse)
            whole = (*one, list[schemas.LmiResponse], list[schemas.LmiBestOfResponse])
            answers = {JSON: whole, JSON_LINES: record, EVENTS: record}
            if properties.output_formatter is not None:  # may come from another package, so its output type is unknown
                answers.setdefault(load_formatter_class(properties.output_formatter).content_type, (object,))
        else:
            dialect = LmiDynamicDialect(properties, context.sampled_defaults)
            answers = {JSON: (list[schemas.DynamicBatchText],), JSON_LINES: (schemas.DynamicBatchOutputs,)}
        self.native = generation(dialect, LmiRequest, answers)

    def routes(self) -> Sequence[Route]:
        return ()
