"""Embeds or classifies prompts with vLLM's pooling runner, for the values of `option.task` that pool.

vLLM computes the vectors of the tokens and pools them. The modules that follow are ours, because vLLM only warns if it
does not know one.
"""

from __future__ import annotations

import backends.vllm.environment  # noqa: F401  before vLLM is imported

# isort: split

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from vllm import EngineArgs, LLMEngine
from vllm import PoolingParams as EnginePoolingParams
from vllm.config import PoolerConfig, VllmConfig
from vllm.config.pooler import SequencePoolingType
from vllm.exceptions import VLLMClientError
from vllm.model_executor.models.roberta import RobertaEmbedding
from vllm.outputs import PoolingOutput, PoolingRequestOutput

from backends.base import Backend, ModelFiles
from backends.pooling.output import failed_output, pooled_output
from backends.pooling.pooler import Pooler, SpladePooler, read_pooler
from backends.pooling.scores import check_classifier, read_activation, read_labels
from backends.vllm import DECLARATION
from backends.vllm.engine_args import engine_arguments
from backends.vllm.errors import one_line
from backends.vllm.inputs import engine_input
from backends.vllm.offload import keeps_salts_apart
from backends.vllm.start import checkpoint, preview_workers, start_engine, workers_of
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.errors import ConfigError, EngineDead, InvalidRequest
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.pooling_params import PoolingParams
from lmi_handlers.core.request import TokenRequest

logger = logging.getLogger(__name__)

_POOLED_BY_ENGINE: Mapping[str, SequencePoolingType] = {"cls": "CLS", "lasttoken": "LAST", "mean": "MEAN"}
"""Sentence-transformers' modes -> vLLM's. For others, vLLM returns the vectors of all tokens."""

_UNSUPPORTED = ("dimensions", "enable_chunked_processing", "max_embed_len")
"""Fields of `option.pooler_config` that change a vector's size or the limit of a text, which the server checks."""


class VLLMPoolingBackend(Backend):
    """One `LLMEngine` that pools. Any exception from its `step` is fatal, as for the engine that generates text."""

    def __init__(self, engine: LLMEngine, pooler: Pooler | None, *, engine_pools: bool) -> None:
        """Wrap the engine. `pooler` is None for a classifier. With `engine_pools`, only its modules are applied here."""
        self._engine, self._pooler, self._engine_pools = engine, pooler, engine_pools
        self._workers = workers_of(engine)
        config, model = engine.vllm_config, engine.vllm_config.model_config
        self._by_priority = config.scheduler_config.policy == "priority"
        self._scheduler = engine.engine_core.engine_core.scheduler
        self._running: dict[str, TokenRequest] = {}
        self._progress = 0
        traits = engine.apply_model(_prepare)[0]
        self._takes_token_types = traits.takes_token_types
        max_model_len = model.max_model_len
        if traits.first_position:
            max_model_len = min(max_model_len, model.hf_config.max_position_embeddings - traits.first_position)
        size = None
        self._activation: nn.Module = nn.Identity()
        if pooler is None:
            self._activation = read_activation(model.hf_config)
        else:
            modes = 1 if engine_pools else len(pooler.modes)
            size = pooler.tail(torch.zeros(1, model.get_hidden_size() * modes)).shape[1]
        self._capabilities = Capabilities(
            backend=DECLARATION.name,
            max_model_len=max_model_len,
            max_num_seqs=config.scheduler_config.max_num_seqs,
            vocab_size=model.get_vocab_size(),
            unsupported=tuple(DECLARATION.unsupported),
            device=config.device_config.device_type,
            dtype=str(model.dtype).removeprefix("torch."),
            takes_cache_salt=keeps_salts_apart(config),
            pooling_tasks=("classify",) if pooler is None else ("embed", "embed_all"),
            embedding_size=size,
            labels=read_labels(model.hf_config) if pooler is None else (),
            pooling="" if pooler is None else pooler.name,
        )
        logger.info("model loaded", extra={"dtype": self._capabilities.dtype, "device": self._capabilities.device})

    @classmethod
    def load(
        cls, model: ModelFiles, properties: ServingProperties, report: Callable[[str], None]
    ) -> VLLMPoolingBackend:
        """Build the engine. Any failure raises `ConfigError` or `LoadFailed` with a one-line message."""
        path = checkpoint(model, DECLARATION.name)
        arguments = engine_arguments(path, properties, report=report)
        asked = _pooler_config(arguments)
        pooler = read_pooler(path) if properties.embeds else None
        if isinstance(pooler, SpladePooler):
            raise ConfigError("option.rolling_batch=vllm: vLLM computes no sparse embeddings; auto does")
        if pooler is not None and asked.seq_pooling_type is None and len(pooler.modes) == 1:
            asked.seq_pooling_type = _POOLED_BY_ENGINE.get(pooler.modes[0])
        engine_pools = asked.seq_pooling_type is not None
        arguments.pooler_config = asked
        engine = start_engine(arguments, properties, report, functools.partial(_check, embeds=properties.embeds))
        return cls(engine, pooler, engine_pools=engine_pools)

    @classmethod
    def check_options(cls, properties: ServingProperties) -> None:
        """Check the options with vLLM's own parser."""
        _pooler_config(engine_arguments(Path(), properties))

    @classmethod
    def preview_resources(cls, properties: ServingProperties) -> tuple[str, bool]:
        """Ask Ray, in a process of its own."""
        return preview_workers(properties)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def progress(self) -> int:
        return self._progress

    def add_request(self, request: TokenRequest) -> None:
        """Hand a prompt to vLLM. Raises `InvalidRequest`."""
        try:
            self._engine.add_request(
                request.request_id,
                engine_input(request.prompt),
                self._engine_params(request),
                priority=request.priority if self._by_priority else 0,
            )
        except (VLLMClientError, ValueError) as error:
            raise InvalidRequest(one_line(error)) from error
        self._running[request.request_id] = request

    def abort(self, request_id: str) -> None:
        if self._running.pop(request_id, None) is not None:
            self._engine.abort_request([request_id])

    def step(self) -> list[TokenOutput]:
        """Run one step of the engine. Any error in it raises `EngineDead`."""
        if not self._running:
            return []
        try:
            outputs = self._engine.step()
            if not outputs:
                self._progress = sum(request.num_computed_tokens for request in self._scheduler.running)
        except Exception as error:
            raise EngineDead(f"vLLM: {one_line(error)}") from error
        return [self._output(self._running.pop(output.request_id), output) for output in outputs]

    @property
    def kv_cache_usage(self) -> float:
        """Share of vLLM's KV cache blocks in use. Encoders have no KV cache."""
        usage: float = self._scheduler.get_kv_cache_usage()
        return usage

    def check_health(self) -> None:
        """Raise `EngineDead` with the name of a dead worker process."""
        self._workers.check_health()

    def close(self) -> None:
        """Stop vLLM's worker processes, if there are any."""
        self._engine.engine_core.shutdown()

    def _engine_params(self, request: TokenRequest) -> EnginePoolingParams:
        if self._pooler is not None:
            pools = self._engine_pools and _params(request).task == "embed"
            return EnginePoolingParams(task="embed" if pools else "token_embed", use_activation=False)
        types = request.prompt.token_type_ids
        second = (
            {"compressed_token_type_ids": types.index(1)} if types and self._takes_token_types and 1 in types else None
        )
        return EnginePoolingParams(task="classify", use_activation=False, extra_kwargs=second)

    def _output(self, request: TokenRequest, output: PoolingRequestOutput[PoolingOutput]) -> TokenOutput:
        if output.error is not None:
            return failed_output(request, output.error.message)
        computed = output.outputs.data.float().cpu()
        if self._pooler is not None and _params(request).task == "embed":
            with torch.inference_mode():
                if self._engine_pools:
                    computed = self._pooler.tail(computed[None])[0]
                else:
                    computed = self._pooler(computed[None], torch.tensor([len(computed)]))[0]
        return pooled_output(request, computed, self._activation)


def _params(request: TokenRequest) -> PoolingParams:
    return request.pooling_params or PoolingParams()


def _pooler_config(arguments: EngineArgs) -> PoolerConfig:
    """Return vLLM's options of the pooling. Raises `ConfigError` for those that are not vLLM's to apply here."""
    asked = arguments.pooler_config or PoolerConfig()
    for name in _UNSUPPORTED:
        if getattr(asked, name):
            raise ConfigError(f"option.pooler_config: {name} is not supported")
    return asked


def _check(config: VllmConfig, *, embeds: bool) -> None:
    """Raise `ConfigError` if the model cannot be served with the options. vLLM would only warn, and fail at a request."""
    model = config.model_config
    if not embeds:
        check_classifier(model.hf_config.architectures)
    for name, is_on, is_supported in (
        ("prefix_caching", config.cache_config.enable_prefix_caching, model.is_prefix_caching_supported),
        ("chunked_prefill", config.scheduler_config.enable_chunked_prefill, model.is_chunked_prefill_supported),
    ):
        if is_on and not is_supported:
            raise ConfigError(f"option.enable_{name} has value true: vLLM cannot pool this model's vectors with it")


class _Traits(NamedTuple):
    """The arguments of vLLM's own class of the model. `first_position` is that of the first token."""

    takes_token_types: bool
    first_position: int


def _prepare(model: nn.Module) -> _Traits:
    """Remove sentence-transformers' modules after the pooling, which are applied here. Runs where the model is."""
    pooler = getattr(model, "pooler", None)
    for part in getattr(pooler, "poolers_by_task", {"": pooler}).values():
        head: Any = getattr(part, "head", None)
        if isinstance(getattr(head, "projector", None), nn.Sequential):  # others are layers of the model itself
            head.projector = None
    positions = [module.padding_idx + 1 for module in model.modules() if isinstance(module, RobertaEmbedding)]
    return _Traits("token_type_ids" in inspect.signature(model.forward).parameters, max(positions, default=0))
