"""The slow path that works for every model: each sequence by itself, with the library's own cache."""

from __future__ import annotations

import inspect
import logging
import math
from dataclasses import dataclass
from typing import Any

import torch

from backends.paged.runner import Runner
from backends.paged.sequence import Sequence, SequenceChunk
from backends.transformers.kv_cache import BLOCK_SIZE
from backends.transformers.lora_layers import LoraLayers
from backends.transformers.memory_errors import is_out_of_memory, memory_errors

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _State:
    """The computed part of a sequence: its first `num_tokens` tokens, in the library's own `kwargs`."""

    num_tokens: int
    kwargs: dict[str, Any]


class SequentialRunner(Runner):
    """Runs one forward pass of batch size 1 per chunk, like the library's `generate`.

    A model's state, be it keys and values or a recurrent state, stays in the keyword arguments that the library passes
    from one forward to the next. So this class works with any kind of cache. The `num_blocks` blocks only count tokens.
    `lora` applies each sequence's adapter.
    """

    block_size = BLOCK_SIZE
    takes_partial_prompts = False
    shares_blocks = False

    def __init__(self, model: Any, num_blocks: int, lora: LoraLayers) -> None:
        self._model = model
        self.lora = lora
        embeddings = model.get_input_embeddings().weight
        self._device: torch.device = embeddings.device
        self.vocab_size: int = embeddings.shape[0]
        self.num_blocks = num_blocks
        parameters = inspect.signature(model.forward).parameters
        self._keeps_last_logits = "logits_to_keep" in parameters
        self._takes_positions = "position_ids" in parameters
        self._states: dict[int, _State] = {}

    def forward(self, chunks: list[SequenceChunk]) -> torch.Tensor:
        """Compute chunks one after the other. If the model raises for a prompt with images, only that prompt fails."""
        with memory_errors(), torch.inference_mode():
            return torch.cat([self._forward_one(chunk) for chunk in chunks])

    def release(self, sequence: Sequence) -> None:
        """Drop the sequence's state."""
        self._states.pop(id(sequence), None)

    def _forward_one(self, chunk: SequenceChunk) -> torch.Tensor:
        """Compute a chunk. If a prompt with images fails for another reason than memory, all its logits are NaN."""
        sequence = chunk.sequence
        state = self._states.pop(id(sequence), None)
        if state is not None and state.num_tokens != chunk.start:
            state = None  # an earlier attempt failed half-way, or tokens of a draft were wrong
        try:
            logits, state = self._compute(chunk, state)
        except Exception as error:
            if not sequence.model_kwargs or is_out_of_memory(error):
                raise
            logger.exception("a prompt with images cannot be computed")
            return torch.full((chunk.num_logits, self.vocab_size), math.nan, device=self._device)
        self._states[id(sequence)] = state
        return logits

    def _compute(self, chunk: SequenceChunk, state: _State | None) -> tuple[torch.Tensor, _State]:
        """Compute a chunk that continues `state`, or the whole sequence up to its end."""
        sequence = chunk.sequence
        token_ids = [*sequence.token_ids[: chunk.start], *chunk.token_ids]
        input_ids = torch.tensor([token_ids], device=self._device)
        kwargs = self._first_kwargs(sequence) if state is None else state.kwargs
        # The arguments cover the prompt, or one token more than what is computed.
        missing = chunk.stop - (sequence.prompt_len if state is None else state.num_tokens + 1)
        if missing:
            kwargs = self._extended(kwargs, missing)
        inputs = self._model.prepare_inputs_for_generation(
            input_ids,
            next_sequence_length=chunk.stop - (0 if state is None else state.num_tokens),
            is_first_iteration=state is None,
            **kwargs,
        )
        if self._keeps_last_logits:  # after the call above, in which some models put their own number here
            inputs["logits_to_keep"] = chunk.num_logits
        with self.lora.adapted([(sequence.adapter, len(chunk.token_ids))]):
            output = self._model(**inputs, return_dict=True)
        kwargs = self._extended(kwargs, 1, output)
        # Images are cached now.
        kwargs = {name: value for name, value in kwargs.items() if not name.startswith("pixel_")}
        logits: torch.Tensor = output.logits[0, -chunk.num_logits :]
        return logits, _State(chunk.stop, kwargs)

    # These methods are private, but models override them for generation, so they must be called.

    def _first_kwargs(self, sequence: Sequence) -> dict[str, Any]:
        """Return the arguments for a prompt."""
        prompt = torch.tensor([sequence.token_ids[: sequence.prompt_len]], device=self._device)
        kwargs: dict[str, Any] = {"use_cache": True, "attention_mask": torch.ones_like(prompt)}
        kwargs |= {name: value.to(self._device) for name, value in sequence.model_kwargs.items()}
        if self._takes_positions:
            # These may differ from the token positions: images can have positions in three dimensions.
            kwargs["position_ids"] = self._model._prepare_position_ids_for_generation(prompt, kwargs)  # noqa: SLF001
        return kwargs

    def _extended(self, kwargs: dict[str, Any], count: int, output: Any = ()) -> dict[str, Any]:
        """Return the arguments for `count` more tokens of text, with the cache from `output`."""
        extended: dict[str, Any] = self._model._update_model_kwargs_for_generation(  # noqa: SLF001
            output, kwargs, num_new_tokens=count
        )
        return extended
