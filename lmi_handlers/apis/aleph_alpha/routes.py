"""Aleph Alpha's routes: `/chat/completions` and `/complete`.

Source: Aleph Alpha's API reference.
"""

from __future__ import annotations

from collections.abc import Sequence

from formatters.aleph_alpha import responses
from formatters.openai.responses import ChatCompletion
from lmi_handlers.apis.aleph_alpha.chat import AlephAlphaBody, AlephAlphaDialect
from lmi_handlers.apis.aleph_alpha.completion import (
    NEUTRAL,
    AlephAlphaCompletionBody,
    AlephAlphaCompletionDialect,
)
from lmi_handlers.apis.api import Api, Context
from lmi_handlers.apis.documentation import CHAT_EXAMPLE, QUESTION, Bounds, Documentation, sampling_bounds
from lmi_handlers.apis.routes import EVENTS, JSON, Generation, Route
from lmi_handlers.core.sampling_params import RANGES

TAG = "Aleph Alpha"


def _chat_bounds() -> Bounds:
    known = sampling_bounds()
    same = {name: known[name] for name in ("n", "max_tokens", "stop", "logit_bias")}
    return same | {"maximum_tokens": known["max_tokens"], "messages": {"minItems": 1}}


def _completion_bounds() -> Bounds:
    known = sampling_bounds()
    return {name: known[name] for name in ("temperature", "n", "logit_bias")} | {
        "maximum_tokens": {"minimum": 0, "maximum": RANGES["max_tokens"][1]},  # 0 is for `echo`
        "minimum_tokens": known["min_tokens"],
        "top_p": {"minimum": 0, "maximum": 1},
        "best_of": known["n"],
        "stop_sequences": known["stop"],
        "completion_bias_exclusion": known["bad_words"],
        **{name: {"const": neutral} for name, neutral in NEUTRAL.items()},
    }


_PROMPT_ITEM_BOUNDS: Bounds = {"controls": {"maxItems": 0}}


class AlephAlphaApi(Api):
    """Chats and text completions."""

    prefixes = ("/chat", "/complete")
    documentation = Documentation(
        names={"AlephAlphaRequest": AlephAlphaBody, "AlephAlphaCompletionRequest": AlephAlphaCompletionBody},
        examples={
            AlephAlphaBody: CHAT_EXAMPLE | {"model": "any", "max_tokens": 20},
            AlephAlphaCompletionBody: {"model": "any", "prompt": QUESTION, "maximum_tokens": 20},
        },
        bounds={
            "AlephAlphaRequest": _chat_bounds(),
            "AlephAlphaCompletionRequest": _completion_bounds(),
            "TextPromptItem": _PROMPT_ITEM_BOUNDS,
            "TokenIdsPromptItem": _PROMPT_ITEM_BOUNDS,
        },
    )

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> Sequence[Route]:
        facts, budget = self._context.facts, self._context.budget
        return (
            Route(
                method="POST",
                path="/chat/completions",
                name="aleph_alpha_chat_completions",
                tag=TAG,
                summary="Generate an answer to a conversation.",
                endpoint=Generation(
                    dialects=(AlephAlphaDialect(facts, budget=budget),),
                    bodies={JSON: (AlephAlphaBody,)},
                    answers={JSON: (ChatCompletion,), EVENTS: (responses.AlephAlphaChunk,)},
                ),
            ),
            Route(
                method="POST",
                path="/complete",
                name="aleph_alpha_complete",
                tag=TAG,
                summary="Generate text from a prompt.",
                endpoint=Generation(
                    dialects=(AlephAlphaCompletionDialect(facts, budget=budget),),
                    bodies={JSON: (AlephAlphaCompletionBody,)},
                    answers={
                        JSON: (responses.AlephAlphaCompletions,),
                        EVENTS: (
                            responses.AlephAlphaStreamChunk,
                            responses.AlephAlphaStreamSummary,
                            responses.AlephAlphaCompletionSummary,
                        ),
                    },
                ),
            ),
        )

    def router_error(self, status: int, kind: str, message: str) -> object:
        return responses.AlephAlphaError(message, {403: "FORBIDDEN", 404: "NOT_FOUND"}.get(status, kind.upper()))
