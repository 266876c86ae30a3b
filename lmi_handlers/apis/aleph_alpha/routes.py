"""Aleph Alpha's routes: `/chat/completions`, `/complete`, `/semantic_embed` and `/batch_semantic_embed`.

Sources: Aleph Alpha's API reference; aleph-alpha-client 11.5 for embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence

from formatters.aleph_alpha import schemas
from formatters.aleph_alpha.examples import ANSWERS
from formatters.openai.schemas import ChatCompletion
from lmi_handlers.apis.aleph_alpha.chat import AlephAlphaBody, AlephAlphaDialect
from lmi_handlers.apis.aleph_alpha.completion import (
    NEUTRAL,
    AlephAlphaCompletionBody,
    AlephAlphaCompletionDialect,
)
from lmi_handlers.apis.aleph_alpha.embedding import (
    BatchSemanticEmbedBody,
    BatchSemanticEmbedDialect,
    SemanticEmbedBody,
    SemanticEmbedDialect,
)
from lmi_handlers.apis.api import Api, Context
from lmi_handlers.apis.documentation import CHAT_EXAMPLE, QUESTION, Bounds, Documentation, parameter_bounds
from lmi_handlers.apis.routes import EVENTS, JSON, TEXT_EMBEDDING, TEXT_GENERATION, Contents, Route, generation
from lmi_handlers.core.sampling_params import RANGES

TAG = "Aleph Alpha"


def _chat_bounds() -> Bounds:
    declared: Bounds = {name: {} for name in ("temperature", "top_k", "top_p")}  # by their types, which are stricter
    return {**parameter_bounds(AlephAlphaBody), **declared, "messages": {"minItems": 1}}


def _completion_bounds() -> Bounds:
    return {
        **parameter_bounds(AlephAlphaCompletionBody),
        "maximum_tokens": {"minimum": 0, "maximum": RANGES["max_tokens"][1]},  # 0 is for `echo`
        "top_k": {},  # has stricter bounds in its type, and so has `log_probs`
        "log_probs": {},
        "top_p": {"minimum": 0, "maximum": 1},
        **{name: {"const": neutral} for name, neutral in NEUTRAL.items()},
    }


_PROMPT_ITEM_BOUNDS: Bounds = {"controls": {"maxItems": 0}}


class AlephAlphaApi(Api):
    """Chats, text completions and embeddings."""

    prefixes = ("/chat", "/complete", "/semantic_embed", "/batch_semantic_embed")
    documentation = Documentation(
        names={"AlephAlphaRequest": AlephAlphaBody, "AlephAlphaCompletionRequest": AlephAlphaCompletionBody},
        examples={
            **ANSWERS,
            AlephAlphaBody: CHAT_EXAMPLE | {"model": "any", "max_tokens": 20},
            AlephAlphaCompletionBody: {"model": "any", "prompt": QUESTION, "maximum_tokens": 20},
            SemanticEmbedBody: {"model": "any", "prompt": QUESTION, "representation": "query"},
            BatchSemanticEmbedBody: {"model": "any", "prompts": [QUESTION], "representation": "query"},
        },
        bounds={
            "AlephAlphaRequest": _chat_bounds(),
            "AlephAlphaCompletionRequest": _completion_bounds(),
            "SemanticEmbedBody": {},
            "BatchSemanticEmbedBody": {"prompts": {"minItems": 1}},
            "TextPromptItem": _PROMPT_ITEM_BOUNDS,
            "TokenIdsPromptItem": _PROMPT_ITEM_BOUNDS,
        },
    )

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> Sequence[Route]:
        facts, budget = self._context.facts, self._context.budget
        answers: Contents = {JSON: (ChatCompletion,), EVENTS: (schemas.AlephAlphaChunk,)}
        chat = generation(AlephAlphaDialect(facts, budget=budget), AlephAlphaBody, answers, TEXT_GENERATION)
        events = (
            schemas.AlephAlphaStreamChunk,
            schemas.AlephAlphaStreamSummary,
            schemas.AlephAlphaCompletionSummary,
        )
        answers = {JSON: (schemas.AlephAlphaCompletions,), EVENTS: events}
        complete = generation(
            AlephAlphaCompletionDialect(facts, budget=budget), AlephAlphaCompletionBody, answers, TEXT_GENERATION
        )
        one, several = SemanticEmbedDialect(facts, budget=budget), BatchSemanticEmbedDialect(facts, budget=budget)
        embed = generation(one, SemanticEmbedBody, {JSON: (schemas.SemanticEmbedding,)}, TEXT_EMBEDDING)
        batch_embed = generation(several, BatchSemanticEmbedBody, {JSON: (schemas.SemanticEmbeddings,)}, TEXT_EMBEDDING)
        return (
            Route("POST", "/chat/completions", "aleph_alpha_chat_completions", TAG, "Continue a conversation.", chat),
            Route("POST", "/complete", "aleph_alpha_complete", TAG, "Generate text from a prompt.", complete),
            Route("POST", "/semantic_embed", "aleph_alpha_semantic_embed", TAG, "Embed a text.", embed),
            Route("POST", "/batch_semantic_embed", "aleph_alpha_batch_embed", TAG, "Embed texts.", batch_embed),
        )

    def router_error(self, status: int, kind: str, message: str) -> object:
        return schemas.AlephAlphaError(message, {403: "FORBIDDEN", 404: "NOT_FOUND"}.get(status, kind.upper()))
