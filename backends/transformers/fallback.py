"""The slow path that works for every model: each sequence by itself, with the library's own cache."""

from __future__ import annotations

import inspect
import logging
import math
from typing import Any

import torch

from backends.transformers.runner import Runner
from backends.transformers.sequence import Chunk, Sequence

logger = logging.getLogger(__name__)


class SequentialRunner(Runner):
    """Runs one forward pass of batch size 1 per chunk, like the library's `generate`.

    A model's state, be it keys and values or a recurrent state, stays in the keyword arguments that the library passes
    from one forward to the next. So this class works with any kind of cache.
    """

    takes_partial_prompts = False

    def __init__(self, model: Any) -> None:
        self._model = model
        embeddings = model.get_input_embeddings().weight
        self._device: torch.device = embeddings.device
        self._vocab_size: int = embeddings.shape[0]
        parameters = inspect.signature(model.forward).parameters
        self._keeps_last_logits = "logits_to_keep" in parameters
        self._takes_positions = "position_ids" in parameters
        self._kwargs: dict[int, dict[str, Any]] = {}

    def forward(self, chunks: list[Chunk]) -> torch.Tensor:
        """Compute chunks one after the other. If the model raises for a prompt with images, only that prompt fails."""
        with torch.inference_mode():
            return torch.cat(
                [self._forward_image(c) if c.sequence.model_kwargs else self._forward_one(c) for c in chunks]
            )

    def release(self, sequence: Sequence) -> None:
        """Drop the sequence's cache."""
        self._kwargs.pop(id(sequence), None)

    def _forward_image(self, chunk: Chunk) -> torch.Tensor:
        """Compute a prompt with images. If that fails, all its logits are NaN."""
        try:
            return self._forward_one(chunk)
        except Exception:
            logger.exception("a prompt with images cannot be computed")
            return torch.full((chunk.num_logits, self._vocab_size), math.nan, device=self._device)

    def _forward_one(self, chunk: Chunk) -> torch.Tensor:
        input_ids = torch.tensor([chunk.sequence.token_ids[: chunk.stop]], device=self._device)
        kwargs = self._kwargs.get(id(chunk.sequence))
        first = kwargs is None
        if kwargs is None:
            kwargs = {"use_cache": True, "attention_mask": torch.ones_like(input_ids)}
            kwargs |= {name: value.to(self._device) for name, value in chunk.sequence.model_kwargs.items()}
            if self._takes_positions:
                # These may differ from the token positions: images can have positions in three dimensions.
                kwargs["position_ids"] = self._model._prepare_position_ids_for_generation(input_ids, kwargs)  # noqa: SLF001
        if self._keeps_last_logits:
            kwargs["logits_to_keep"] = chunk.num_logits
        inputs = self._model.prepare_inputs_for_generation(
            input_ids, next_sequence_length=chunk.stop - chunk.start, is_first_iteration=first, **kwargs
        )
        output = self._model(**inputs, return_dict=True)
        # These methods are private, but models override them for generation, so they must be called.
        kwargs = self._model._update_model_kwargs_for_generation(output, kwargs)  # noqa: SLF001
        if first:
            chunk.sequence.model_kwargs = {}  # the images are cached now, and their pixels take much memory
            kwargs = {name: value for name, value in kwargs.items() if not name.startswith("pixel_")}
        self._kwargs[id(chunk.sequence)] = kwargs
        logits: torch.Tensor = output.logits[0, -chunk.num_logits :]
        return logits
