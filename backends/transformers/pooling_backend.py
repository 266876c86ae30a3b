"""Embeds or classifies prompts with a model of the transformers library, for the values of `option.task` that pool."""

from __future__ import annotations

import contextlib
import inspect
import logging
import time
from collections.abc import Callable, Sequence

import torch
from torch.nn.utils.rnn import pad_sequence

from backends.base import Backend, ModelFiles
from backends.max_model_len import choose_max_model_len
from backends.pooling.output import failed_output, pooled_output
from backends.pooling.pooler import stated_lengths
from backends.transformers import DECLARATION
from backends.transformers.heads import PoolingHead, load_head
from backends.transformers.length_batches import next_batch
from backends.transformers.loading import pack_if_equal, position_limit
from backends.transformers.memory_errors import memory_errors
from lmi_handlers.config.properties import ServingProperties
from lmi_handlers.core.capabilities import Capabilities
from lmi_handlers.core.errors import ConfigError
from lmi_handlers.core.load_phase import LoadPhase
from lmi_handlers.core.outputs import TokenOutput
from lmi_handlers.core.pooling_params import PoolingParams, PoolingTask
from lmi_handlers.core.request import EncodedPrompt, TokenRequest

logger = logging.getLogger(__name__)


class PoolingBackend(Backend):
    """Computes waiting prompts batch by batch, one forward pass per step.

    `max_batch_tokens` limits the tokens of a batch, padding included. `max_num_seqs` is the number of prompts to choose
    a batch from; the others wait in the loop's queue. `packs` says that the weights may be packed, if they are not yet.
    """

    measures_steps = True

    def __init__(
        self,
        head: PoolingHead,
        *,
        max_model_len: int,
        max_num_seqs: int | None = None,
        max_batch_tokens: int | None = None,
        packs: bool = True,
    ) -> None:
        self._head, model = head, head.model
        embeddings: torch.Tensor = model.get_input_embeddings().weight
        self._device = embeddings.device
        self._pad_id: int = getattr(model.config.get_text_config(), "pad_token_id", None) or 0
        self._has_token_types = "token_type_ids" in inspect.signature(model.forward).parameters
        on_cpu = self._device.type == "cpu"
        self._max_batch_tokens = max_batch_tokens or (CPU_BATCH_TOKENS if on_cpu else BATCH_TOKENS)
        self._call_cost = CPU_CALL_COST if on_cpu else CALL_COST
        self._waiting: dict[str, TokenRequest] = {}  # in order of arrival
        self._steps = 0
        end = getattr(model.config, "eos_token_id", None)
        end = end if isinstance(end, int) and end < embeddings.shape[0] else 0
        probe = [
            EncodedPrompt([(31 * i + 7) % embeddings.shape[0] for i in range(min(length, max_model_len) - 1)] + [end])
            for length in (9, 6)
        ]

        def compute() -> torch.Tensor:
            return torch.stack([*self._compute(probe, head.tasks[:1] * len(probe))])

        results = pack_if_equal(model, compute) if packs else compute()
        self._capabilities = Capabilities(
            backend=DECLARATION.name,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs or (CPU_CANDIDATES if on_cpu else CANDIDATES),
            vocab_size=embeddings.shape[0],
            unsupported=tuple(DECLARATION.unsupported),
            device=self._device.type,
            dtype=str(model.dtype).removeprefix("torch."),
            takes_cache_salt=True,
            pooling_tasks=head.tasks,
            embedding_size=None if head.labels else results.shape[1],
            labels=head.labels,
            pooling=head.pooling,
        )

    @classmethod
    def load(cls, model: ModelFiles, properties: ServingProperties, report: Callable[[str], None]) -> PoolingBackend:
        """Load the weights from `model.path`. The files beside them tell what to compute."""
        if model.path is None:
            raise ConfigError("option.model_id: the transformers backend needs a model")
        report(LoadPhase.WEIGHTS)
        head = load_head(model.path, properties)
        head.model.config.use_cache = False
        report(LoadPhase.WARM_UP)
        return cls(
            head,
            max_model_len=choose_max_model_len(
                position_limit(head.model), properties.max_model_len, *stated_lengths(model.path)
            ),
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
        self._head.check(request.prompt.token_ids)
        self._waiting[request.request_id] = request

    def abort(self, request_id: str) -> None:
        self._waiting.pop(request_id, None)

    def step(self) -> list[TokenOutput]:
        """Compute the prompt that has waited longest, together with others of similar length."""
        if not self._waiting:
            return []
        waiting = list(self._waiting.values())
        lengths = [len(request.prompt.token_ids) for request in waiting]
        batch = [waiting[position] for position in next_batch(lengths, self._max_batch_tokens, self._call_cost)]
        for request in batch:
            del self._waiting[request.request_id]
        began = time.monotonic()
        outputs = self._outputs(batch)
        per_token = (time.monotonic() - began) / sum(len(request.prompt.token_ids) for request in batch)
        for request in batch:
            request.meter.engine_time += per_token * len(request.prompt.token_ids)
        return outputs

    def _outputs(self, batch: Sequence[TokenRequest]) -> list[TokenOutput]:
        with contextlib.suppress(MemoryError), memory_errors():
            tasks = [(request.pooling_params or PoolingParams()).task for request in batch]
            results = self._compute([request.prompt for request in batch], tasks)
            self._steps += 1
            return [
                pooled_output(request, result, self._head.activation)
                for request, result in zip(batch, results, strict=True)
            ]
        if len(batch) == 1:
            return [failed_output(batch[0], "the engine ran out of memory while it computed this input")]
        logger.warning("out of memory: the inputs are computed one by one", extra={"inputs": len(batch)})
        return [output for request in batch for output in self._outputs([request])]

    def _compute(self, prompts: Sequence[EncodedPrompt], tasks: Sequence[PoolingTask]) -> Sequence[torch.Tensor]:
        """Return what the head computes for each prompt, in float32 on the CPU."""
        lengths = torch.tensor([len(prompt.token_ids) for prompt in prompts])
        inputs = {"input_ids": _padded([prompt.token_ids for prompt in prompts], self._pad_id)}
        if self._has_token_types and any(prompt.token_type_ids for prompt in prompts):
            types = [prompt.token_type_ids or [0] * len(prompt.token_ids) for prompt in prompts]
            inputs["token_type_ids"] = _padded(types, 0)
        longest = inputs["input_ids"].shape[1]
        if lengths.min() < longest:  # without a mask, the model may use a faster kernel
            inputs["attention_mask"] = (torch.arange(longest) < lengths[:, None]).long()
        with torch.inference_mode():
            placed = {name: tensor.to(self._device) for name, tensor in inputs.items()}
            return self._head.compute(placed, lengths.to(self._device), tasks)


def _padded(rows: Sequence[list[int]], value: int) -> torch.Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value)


# Chosen on a CPU with two cores: more tokens at a time are not computed faster. On GPUs they are.
CPU_BATCH_TOKENS = 2048
BATCH_TOKENS = 16_384
CPU_CALL_COST = 64
CALL_COST = 2048
CPU_CANDIDATES = 128
CANDIDATES = 1024
