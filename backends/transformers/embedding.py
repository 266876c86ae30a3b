"""Embeds prompts with an encoder or a decoder of the transformers library: `option.task=text-embedding`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, AutoModelForTextEncoding

from backends.base import Backend, ModelFiles
from backends.transformers import DECLARATION
from backends.transformers.length_batches import next_batch
from backends.transformers.loading import UNBOUNDED_MAX_MODEL_LEN, load_model, pack_if_equal
from backends.transformers.memory_errors import memory_errors
from backends.transformers.pooling import Pooler, read_object, read_pooler
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.load_phase import LoadPhase
from lmi_handlers.core.outputs import FinishReason, TokenOutput
from lmi_handlers.core.request import TokenRequest

logger = logging.getLogger(__name__)


class EmbeddingBackend(Backend):
    """Embeds waiting prompts batch by batch, one forward pass per step.

    `max_batch_tokens` limits the tokens of a batch, padding included. `max_num_seqs` is the number of prompts to choose
    a batch from; the others wait in the loop's queue.
    """

    def __init__(
        self,
        model: Any,
        pooler: Pooler,
        *,
        max_model_len: int,
        max_num_seqs: int | None = None,
        max_batch_tokens: int | None = None,
    ) -> None:
        embeddings: torch.Tensor = model.get_input_embeddings().weight
        self._model = model
        self._device = embeddings.device
        self._pooler = pooler.to(self._device)
        self._pad_id: int = getattr(model.config, "pad_token_id", None) or 0
        on_cpu = self._device.type == "cpu"
        self._max_batch_tokens = max_batch_tokens or (CPU_BATCH_TOKENS if on_cpu else BATCH_TOKENS)
        self._call_cost = CPU_CALL_COST if on_cpu else CALL_COST
        self._waiting: dict[str, TokenRequest] = {}  # in order of arrival
        self._steps = 0
        probe = [[(31 * i + 7) % embeddings.shape[0] for i in range(min(length, max_model_len))] for length in (9, 6)]
        self._capabilities = Capabilities(
            backend=DECLARATION.name,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs or (CPU_CANDIDATES if on_cpu else CANDIDATES),
            vocab_size=embeddings.shape[0],
            unsupported=tuple(DECLARATION.unsupported),
            device=self._device.type,
            dtype=str(model.dtype).removeprefix("torch."),
            embedding_size=pack_if_equal(model, lambda: self._embed(probe)).shape[1],
        )

    @classmethod
    def load(cls, model: ModelFiles, properties: ServingProperties, report: Callable[[str], None]) -> EmbeddingBackend:
        """Load the weights from `model.path`, and the pooler from the files beside them."""
        if model.path is None:
            raise ConfigError("option.model_id: the transformers backend needs a model")
        report(LoadPhase.WEIGHTS)
        pooler = read_pooler(model.path)
        loaded = load_model(model.path, properties, _auto_class)
        loaded.config.use_cache = False
        report(LoadPhase.WARM_UP)
        return cls(
            loaded,
            pooler,
            max_model_len=choose_max_model_len(model.path, loaded, properties.max_model_len),
            max_num_seqs=properties.max_rolling_batch_size,
            max_batch_tokens=properties.max_rolling_batch_prefill_tokens,
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def progress(self) -> int:
        return self._steps

    def add_request(self, request: TokenRequest) -> None:
        self._waiting[request.request_id] = request

    def abort(self, request_id: str) -> None:
        self._waiting.pop(request_id, None)

    def step(self) -> list[TokenOutput]:
        """Embed the prompt that has waited longest, together with others of similar length."""
        if not self._waiting:
            return []
        waiting = list(self._waiting.values())
        lengths = [len(request.prompt.token_ids) for request in waiting]
        batch = [waiting[position] for position in next_batch(lengths, self._max_batch_tokens, self._call_cost)]
        for request in batch:
            del self._waiting[request.request_id]
        return self._outputs(batch)

    def _outputs(self, batch: Sequence[TokenRequest]) -> list[TokenOutput]:
        with contextlib.suppress(MemoryError), memory_errors():
            vectors = self._embed([request.prompt.token_ids for request in batch])
            self._steps += 1
            return [_output(request, vector) for request, vector in zip(batch, vectors, strict=True)]
        if len(batch) == 1:
            return [_failed(batch[0], "the engine ran out of memory while it computed this input")]
        logger.warning("out of memory: the inputs are computed one by one", extra={"inputs": len(batch)})
        return [output for request in batch for output in self._outputs([request])]

    def _embed(self, prompts: Sequence[list[int]]) -> torch.Tensor:
        """Return `[prompts, embedding_size]`, in float32 on the CPU."""
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        ids = pad_sequence([torch.tensor(prompt) for prompt in prompts], batch_first=True, padding_value=self._pad_id)
        # Without a mask, the model may use a faster kernel.
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long() if lengths.min() < ids.shape[1] else None
        with torch.inference_mode():
            hidden = self._model(
                input_ids=ids.to(self._device), attention_mask=None if mask is None else mask.to(self._device)
            ).last_hidden_state
            pooled: torch.Tensor = self._pooler(hidden, lengths.to(self._device))
        return pooled.cpu()


def _output(request: TokenRequest, vector: torch.Tensor) -> TokenOutput:
    params = request.pooling_params
    if params is not None and params.dimensions is not None:
        vector = vector[: params.dimensions]
    if params is not None and params.normalize:
        vector = normalize(vector, dim=0)
    if not vector.isfinite().all():
        return _failed(request, "the model computed a number that is not finite for this input")
    return TokenOutput(
        request_id=request.request_id,
        token_ids=[],
        finish_reason=FinishReason.EOS_TOKEN,
        embedding=vector.numpy().tobytes(),
    )


def _failed(request: TokenRequest, cause: str) -> TokenOutput:
    return TokenOutput(request_id=request.request_id, token_ids=[], finish_reason=FinishReason.ERROR, error=cause)


def _auto_class(config: Any) -> Any:
    """Only the encoder of an encoder-decoder model, such as T5, embeds texts."""
    return AutoModelForTextEncoding if config.is_encoder_decoder else AutoModel


def choose_max_model_len(path: Path, model: Any, asked: int | None) -> int:
    """Return `asked`, or else what the model's files say. Raises `ConfigError` if `asked` exceeds the model's limit."""
    config = model.config.get_text_config()
    limit: int | None = getattr(config, "max_position_embeddings", None)
    if limit is not None:
        limit -= _first_position(model)
    if asked is not None:
        if limit is not None and asked > limit:
            raise ConfigError(f"option.max_model_len: must be at most {limit}, the model's limit, got {asked}")
        return asked
    trained = read_object(path / "sentence_bert_config.json").get("max_seq_length")
    tokenizer = read_object(path / "tokenizer_config.json").get("model_max_length")
    known = [length for length in (limit, trained, tokenizer) if isinstance(length, int) and length < _NO_LIMIT]
    return min(known, default=UNBOUNDED_MAX_MODEL_LEN)


def _first_position(model: Any) -> int:
    """Return the position of the first token. RoBERTa and its relatives leave out those up to the padding token's id."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return int(module.padding_idx) + 1
    return 0


# Chosen on a CPU with two cores: more tokens at a time are not computed faster. On GPUs they are.
CPU_BATCH_TOKENS = 2048
BATCH_TOKENS = 16_384
CPU_CALL_COST = 64
CALL_COST = 2048
CPU_CANDIDATES = 128
CANDIDATES = 1024

_NO_LIMIT = 2**31  # transformers writes 1e30 if the tokenizer sets no limit
