"""vLLM's `/classify` and `/pooling`, and what they share with its scores. Source: vLLM 0.32. null means absent."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import msgspec

from formatters.vllm.pooling import ClassifyFormatter, PooledFormatter
from lmi_handlers.apis.base import Payload
from lmi_handlers.apis.openai.body import Prompts, num_prompts, split_prompts
from lmi_handlers.apis.openai.dialect import OpenAIDialect, check_length
from lmi_handlers.config.budget import Budget
from lmi_handlers.core.errors import InvalidRequest
from lmi_handlers.core.pooling_params import PoolingParams
from lmi_handlers.core.request import GenerationRequest, Prompt
from lmi_handlers.serving.parsed import FormatterFactory, ModelFacts, Parsed

Side = Literal["left", "right"]
PoolingTaskName = Literal["embed", "token_embed", "classify"]


class PoolingFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of all bodies. `user` is accepted and ignored.

    `truncate_prompt_tokens` keeps that many tokens of each prompt; -1 keeps as much as the model takes. Without
    `use_activation`, scores are the model's own logits, and vectors are not scaled to length 1.
    """

    model: str | None = None
    user: str | None = None
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    use_activation: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None


class ClassifyBody(PoolingFields, frozen=True, kw_only=True):
    """The body of `/classify`. `truncation_side` says where a text that is too long loses tokens."""

    input: Prompts
    truncation_side: Side | None = None


class PoolingBody(ClassifyBody, frozen=True, kw_only=True):
    """The body of `/pooling`. `task` defaults to the model's: `embed` or `classify`.

    `embed_dtype` and `endianness` are those of `base64`. As in vLLM, there are no `dimensions`.
    """

    task: PoolingTaskName | None = None
    encoding_format: Literal["float", "base64"] | None = None
    embed_dtype: Literal["float32"] | None = None
    endianness: Literal["native", "little"] | None = None
    dimensions: None = None


class PoolingDialect(OpenAIDialect):
    """Base of the dialects of vLLM's routes that score, classify or embed."""

    def _pooled(
        self,
        payload: Payload,
        body: PoolingFields,
        ignored: tuple[str, ...],
        prompts: tuple[Prompt, ...],
        params: PoolingParams,
        formatter: FormatterFactory,
        field: str,
        *,
        side: Side = "right",
    ) -> Parsed:
        truncate = body.truncate_prompt_tokens
        request = GenerationRequest(
            request_id=payload.request_id,
            prompts=prompts,
            pooling_params=params,
            priority=body.priority or 0,
            cache_salt=body.cache_salt,
            truncate=self._facts().capabilities.max_input_tokens if truncate == -1 else truncate,
            truncation_side=side,
            ignored_parameters=ignored,
        )
        return Parsed(request, formatter, str, partial(check_length, field), field)

    def _input(
        self,
        payload: Payload,
        body: ClassifyBody,
        ignored: tuple[str, ...],
        params: PoolingParams,
        formatter: FormatterFactory,
    ) -> Parsed:
        self._budget.check_sequences("input", num_prompts(body.input), 1)
        adapter = self._adapter(body.model, payload)
        prompts = tuple(Prompt(content, adapter) for content in split_prompts(body.input, "input"))
        side = body.truncation_side or "right"
        return self._pooled(payload, body, ignored, prompts, params, formatter, "input", side=side)


def classified(body: PoolingFields) -> PoolingParams:
    """Return the parameters of scores."""
    return PoolingParams(task="classify", activation="none" if body.use_activation is False else "model")


class ClassifyDialect(PoolingDialect):
    """Dialect of `/classify`."""

    def parse(self, payload: Payload) -> Parsed:
        body, ignored = self._decoded(payload, ClassifyBody)
        labels = self._facts().capabilities.labels
        formatter = partial(ClassifyFormatter, model=self._model_name(body.model), labels=labels)
        return self._input(payload, body, ignored, classified(body), formatter)


class PoolDialect(PoolingDialect):
    """Dialect of `/pooling`. `normalize` is the default of vectors, as for embeddings."""

    def __init__(self, facts: Callable[[], ModelFacts], *, budget: Budget, normalize: bool, ranks: bool) -> None:
        super().__init__(facts, budget=budget)
        self._normalize = normalize
        self._tasks: tuple[PoolingTaskName, ...] = ("classify",) if ranks else ("embed", "token_embed")

    def parse(self, payload: Payload) -> Parsed:
        body, ignored = self._decoded(payload, PoolingBody)
        task = body.task or self._tasks[0]
        if task not in self._tasks:
            raise InvalidRequest(f"must be {' or '.join(self._tasks)} with this model, got {task!r}", field="task")
        normalize = self._normalize if body.use_activation is None else body.use_activation
        formatter = partial(
            PooledFormatter,
            model=self._model_name(body.model),
            as_base64=body.encoding_format == "base64",
            per_token=task == "token_embed",
            normalize=normalize,
        )
        match task:
            case "classify":
                params = classified(body)
            case "token_embed":
                params = PoolingParams(task="embed_all")
            case _:
                params = PoolingParams(normalize=normalize)
        return self._input(payload, body, ignored, params, formatter)
