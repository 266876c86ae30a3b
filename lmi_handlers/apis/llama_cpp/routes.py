"""llama.cpp's `/infill`, for editors that complete code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from formatters.llama_cpp import schemas
from formatters.llama_cpp.errors import status_error
from formatters.llama_cpp.examples import ANSWERS
from lmi_handlers.apis.api import Api, Context
from lmi_handlers.apis.documentation import Bounds, Documentation, parameter_bounds
from lmi_handlers.apis.llama_cpp.body import NEUTRAL, UNLIMITED, InfillBody
from lmi_handlers.apis.llama_cpp.dialect import InfillDialect
from lmi_handlers.apis.routes import EVENTS, JSON, TEXT_GENERATION, Contents, Route, generation
from lmi_handlers.core.sampling_params import RANGES


class LlamaCppApi(Api):
    """Code between a prefix and a suffix. Bodies with `input_prefix` are llama.cpp's on the invoke routes, too."""

    prefixes = ("/infill",)

    def __init__(self, context: Context) -> None:
        chosen = dict[str, Any]  # by `response_fields`
        answers: Contents = {
            JSON: (schemas.LlamaCppCompletion, chosen, list[schemas.LlamaCppCompletion], list[dict[str, Any]]),
            EVENTS: (schemas.LlamaCppChunk, schemas.LlamaCppCompletion, chosen),
        }
        dialect = InfillDialect(context.facts, budget=context.budget)
        self._infill = generation(dialect, InfillBody, answers, TEXT_GENERATION)
        self.claims = {"input_prefix": self._infill}
        open_ended: Bounds = {
            "temperature": {"maximum": RANGES["temperature"][1]},
            "top_k": {},
            "top_p": {"maximum": 1},
            "seed": {},
        }
        self.documentation = Documentation(
            examples={
                **ANSWERS,
                InfillBody: {"input_prefix": "def add(a, b):\n    return ", "input_suffix": "\n", "n_predict": 16},
            },
            bounds={
                "InfillBody": {
                    **parameter_bounds(InfillBody),
                    **open_ended,
                    "n_predict": {"minimum": UNLIMITED},
                    "n_probs": {"maximum": RANGES["logprobs"][1]},
                    "input_extra": {"maxItems": context.budget.max_messages},
                    **{name: {"const": neutral} for name, neutral in NEUTRAL.items()},
                }
            },
        )

    def routes(self) -> Sequence[Route]:
        return (Route("POST", "/infill", "infill", "llama.cpp", "Complete code between two texts.", self._infill),)

    def router_error(self, status: int, kind: str, message: str) -> object:  # noqa: ARG002  not in this API
        return status_error(status, message)
