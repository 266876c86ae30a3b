"""Capabilities of a loaded backend, and the checks of a request against them.

Web workers call the checks before they submit a request. Errors use the field names of `SamplingParams`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from lmi_handlers.core.errors import ConfigError, InvalidRequest, UnsupportedFeature
from lmi_handlers.core.pooling_params import PoolingParams, PoolingTask
from lmi_handlers.core.request import GenerationRequest
from lmi_handlers.core.sampling_params import SamplingParams

ServedTask = Literal["text-generation", "text-embedding", "text-ranking"]
"""Values of `option.task` with which an engine answers, and what it then does with texts."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Capabilities of a loaded backend. Sent to the web workers, which answer requests for more with a 4xx.

    `max_model_len` is the maximum number of prompt and generated tokens together.
    `max_input_len` and `max_output_len` limit prompt and answer further, if they are set.
    `max_num_seqs` is the maximum number of sequences that run at the same time.
    `max_logprobs` is the limit for `logprobs`, and for `prompt_logprobs` unless `max_prompt_logprobs` is set.
    `unsupported` lists the `SamplingParams` fields that this backend does not support, and may list "adapters"
    and "continuation".
    `adapters` are the names of the LoRA adapters that requests may use. `adapter_digests` has a digest of each one's files,
    and `weights_digest` is one of the model's, "" if it has none. The engine process sets both.
    `device` is torch's name for the device, for example "cpu" or "cuda". It is empty if the backend does not report it.
    `dtype` is the type of the weights, for example "bfloat16". It is empty if the backend does not report it.
    `takes_images` tells whether prompts may contain images, and `takes_sounds` whether they may contain sounds.
    `sound_marks` are the texts that stand for the first sound of a prompt, the second and so on, for chat templates that
    read only text.
    `takes_cache_salt` tells whether prompts with different salts share nothing, cached or not. A backend has to say so
    itself: a salt that is ignored would isolate nobody.
    `continues` tells whether a sequence may go on after tokens that were generated before (`TokenRequest.generated`). A
    backend has to say so itself, too. `not_continued` lists the `SamplingParams` fields with which it cannot: its next
    token would be another than without the interruption.
    `marks_thoughts` tells whether the server knows how the model marks its thoughts, which `thinking_token_budget`
    needs. The engine process sets it.
    `pooling_tasks` lists what the backend computes for a prompt. If it lists anything, the backend generates no text,
    unless `pools_beside_text`.
    `embedding_size` is the number of dimensions if the backend embeds prompts. `labels` are the names of the scores if
    it classifies them, in order. `block_size` is the number of tokens in a block of the KV cache, which has `num_blocks`;
    both are 0 if the backend does not report them. `max_loras` is the maximum number of adapters in one batch, None if
    there is no limit but `max_num_seqs`. `pooling` is sentence-transformers' word for how the vectors of tokens become one.
    """

    backend: str
    max_model_len: int
    vocab_size: int
    max_input_len: int | None = None
    max_output_len: int | None = None
    max_num_seqs: int = 32
    max_logprobs: int = 20
    max_prompt_logprobs: int | None = None
    unsupported: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    adapter_digests: dict[str, str] = {}
    weights_digest: str = ""
    device: str = ""
    dtype: str = ""
    takes_images: bool = False
    takes_sounds: bool = False
    sound_marks: tuple[str, ...] = ()
    takes_cache_salt: bool = False
    continues: bool = False
    not_continued: tuple[str, ...] = ()
    marks_thoughts: bool = False
    pooling_tasks: tuple[PoolingTask, ...] = ()
    pools_beside_text: bool = False
    embedding_size: int | None = None
    labels: tuple[str, ...] = ()
    pooling: str = ""
    block_size: int = 0
    num_blocks: int = 0
    max_loras: int | None = None

    @property
    def generates(self) -> bool:
        """Whether the backend generates text."""
        return not self.pooling_tasks or self.pools_beside_text

    @property
    def max_input_tokens(self) -> int:
        """Maximum number of prompt tokens. At least one token must be left if there is something to generate."""
        room = self.max_model_len - self.generates
        return room if self.max_input_len is None else min(self.max_input_len, room)


def check_prompt(prompt_token_ids: Sequence[int], capabilities: Capabilities) -> None:
    """Reject a prompt that is empty, too long, or has token ids outside the vocabulary. Raises `InvalidRequest`."""
    length, limit, vocab_size = len(prompt_token_ids), capabilities.max_input_tokens, capabilities.vocab_size
    if not 1 <= length <= limit:
        raise InvalidRequest(f"the prompt must have from 1 to {limit} tokens, got {length}")
    if min(prompt_token_ids) < 0 or max(prompt_token_ids) >= vocab_size:
        wrong = next(token for token in prompt_token_ids if not 0 <= token < vocab_size)
        raise InvalidRequest(f"token ids in the prompt must be from 0 to {vocab_size - 1}, got {wrong}")


def check_task(params: PoolingParams | None, capabilities: Capabilities) -> None:
    """Reject a request for something else than the backend computes. `params` is None for text.

    Raises `UnsupportedFeature`, or `InvalidRequest` if the vectors have too few dimensions.
    """
    tasks, size = capabilities.pooling_tasks, capabilities.embedding_size
    served: ServedTask = _OPTION[tasks[0]] if tasks else "text-generation"
    asked: ServedTask = "text-generation" if params is None else _OPTION[params.task]
    if params is None and capabilities.generates:
        return
    if asked != served:
        raise UnsupportedFeature(other_task(served, asked))
    if params is None:
        return
    if params.task not in tasks:
        raise UnsupportedFeature(_OTHER_MODEL[params.task])
    if params.dimensions is not None and size is not None and params.dimensions > size:
        raise InvalidRequest(f"must be at most {size}, got {params.dimensions}", field="dimensions")


def other_task(served: ServedTask, asked: ServedTask) -> str:
    """Say that a server with `option.task` `served` does not do what was asked of it, and which server does."""
    if asked == "text-generation":
        return f"this server {_DOES[served]} and generates none (option.task={served})"
    needs = "scores need" if asked == "text-ranking" else "embeddings need"
    beside = ", or option.chat_embeddings=mean for /v1/embeddings beside chats" if (served, asked) == _BESIDE else ""
    return f"this server {_DOES[served]}; {needs} a server with option.task={asked}{beside}"


def check_sampling_params(params: SamplingParams, capabilities: Capabilities) -> None:
    """Reject what this engine does not support. Raises `InvalidRequest` or `UnsupportedFeature` with the field."""
    for name in unsupported_fields(params, capabilities):
        raise UnsupportedFeature(f"is not supported by the {capabilities.backend} backend", field=name)
    if params.thinking_token_budget is not None and not capabilities.marks_thoughts:
        raise UnsupportedFeature(NO_MARKS, field="thinking_token_budget")
    max_prompt_logprobs = capabilities.max_prompt_logprobs
    for name, limit in (
        ("max_tokens", capabilities.max_output_len),
        ("logprobs", capabilities.max_logprobs),
        ("prompt_logprobs", capabilities.max_logprobs if max_prompt_logprobs is None else max_prompt_logprobs),
    ):
        value = getattr(params, name)
        if value is not None and limit is not None and value > limit:
            raise InvalidRequest(f"must be at most {limit}, got {value}", field=name)
    for name in ("logit_bias", "stop_token_ids", "allowed_token_ids"):
        token_ids = getattr(params, name)
        for token_id in (min(token_ids), max(token_ids)) if token_ids else ():
            if not 0 <= token_id < capabilities.vocab_size:
                raise InvalidRequest(
                    f"token ids must be from 0 to {capabilities.vocab_size - 1}, got {token_id}", field=name
                )


def check_default_budget(budget: int | None, backend: str, unsupported: Container[str]) -> None:
    """Raise `ConfigError` if `option.thinking_token_budget` is set and the backend does not support it."""
    if budget is not None and "thinking_token_budget" in unsupported:
        raise ConfigError(f"option.thinking_token_budget is not supported by the {backend} backend")


def unsupported_fields(params: SamplingParams, capabilities: Capabilities) -> Iterator[str]:
    """Yield the names of the fields that `params` sets and the backend does not support."""
    for name in capabilities.unsupported:
        if getattr(params, name, None) != getattr(_DEFAULTS, name, None):
            yield name


def check_adapter(name: str | None, capabilities: Capabilities) -> None:
    """Raise `InvalidRequest` if an adapter is not loaded, `UnsupportedFeature` if the backend supports none."""
    if name is None or name in capabilities.adapters:
        return
    if "adapters" in capabilities.unsupported:
        raise UnsupportedFeature(f"is not supported by the {capabilities.backend} backend", field="adapters")
    loaded = ", ".join(capabilities.adapters) or "none"
    raise InvalidRequest(f"adapter {name[:100]!r} is not loaded; loaded adapters: {loaded}", field="adapters")


def check_cache_salt(salt: str | None, capabilities: Capabilities) -> None:
    """Raise `UnsupportedFeature` if a salt is given and the backend could share the prompt's prefix nevertheless."""
    if salt is not None and not capabilities.takes_cache_salt:
        raise UnsupportedFeature(f"is not supported by the {capabilities.backend} backend", field="cache_salt")


def check_continuation(request: GenerationRequest, capabilities: Capabilities) -> None:
    """Reject a request with `generated` tokens if it is not for one sequence, or if this backend cannot continue it.

    Raises `UnsupportedFeature`, with the field of `SamplingParams` if it is one of the parameters that the backend cannot
    continue with, or `InvalidRequest` if the tokens are not in the vocabulary or the answer has all of its `max_tokens`.
    """
    generated, params = request.generated, request.sampling_params
    if not generated:
        return
    if not capabilities.continues:
        raise UnsupportedFeature(f"the {capabilities.backend} backend does not continue answers")
    if len(request.prompts) != 1 or params.n != 1 or request.beam_search or request.pooling_params:
        raise InvalidRequest("only an answer of one sequence can be continued", code="invalid_continuation")
    for name in capabilities.not_continued:
        if getattr(params, name) != getattr(_DEFAULTS, name) and not (name == "seed" and params.greedy):
            raise UnsupportedFeature(
                f"the {capabilities.backend} backend does not continue answers with it", field=name
            )
    if min(generated) < 0 or max(generated) >= capabilities.vocab_size:
        raise InvalidRequest("the answer so far has tokens that are not this model's", code="invalid_continuation")
    limits = [limit for limit in (params.max_tokens, capabilities.max_output_len) if limit is not None]
    if limits and len(generated) >= min(limits):
        raise InvalidRequest(f"the answer has all of its {min(limits)} tokens", code="continuation_finished")


def check_not_ended(request: GenerationRequest, eos_token_ids: Container[int]) -> None:
    """Raise `InvalidRequest` if the last of the `generated` tokens has ended the answer."""
    generated, params = request.generated, request.sampling_params
    if not generated or len(generated) < params.min_tokens:
        return
    if generated[-1] in params.stop_token_ids or (generated[-1] in eos_token_ids and not params.ignore_eos):
        raise InvalidRequest(f"the answer has ended with token {generated[-1]}", code="continuation_finished")


def check_continued_length(prompt_len: int, generated: Sequence[int], capabilities: Capabilities) -> None:
    """Raise `InvalidRequest` if there is no room for a token after the prompt and the `generated` ones."""
    if generated and prompt_len + len(generated) >= capabilities.max_model_len:
        raise InvalidRequest(
            f"prompt and answer have {prompt_len + len(generated)} tokens together; the limit is "
            f"{capabilities.max_model_len}",
            code="continuation_finished",
        )


NO_MARKS = (
    "needs a model whose thoughts the server can tell from its answers: set option.reasoning_parser or "
    "option.enable_reasoning=true"
)

_DEFAULTS = SamplingParams()

_OPTION: Mapping[PoolingTask, ServedTask] = {
    "embed": "text-embedding",
    "embed_all": "text-embedding",
    "embed_sparse": "text-embedding",
    "classify": "text-ranking",
}

_DOES: Mapping[ServedTask, str] = {
    "text-generation": "generates text",
    "text-embedding": "embeds texts",
    "text-ranking": "scores texts",
}

_BESIDE = ("text-generation", "text-embedding")

_OTHER_MODEL: Mapping[PoolingTask, str] = {
    "embed": "this model only has sparse embeddings",
    "embed_all": "this model has no embeddings of single tokens",
    "embed_sparse": "this model has no sparse embeddings: it is not a SPLADE model",
}
