"""The rolling batch: computes all tokens of a step in one forward pass, across sequences."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch

from backends.transformers.attention import BatchLayout, DecodeGroup, PrefillSegment
from backends.transformers.kv_cache import KVCache
from backends.transformers.runner import Runner
from backends.transformers.sequence import Chunk, Sequence

# The cost of one more call of the attention kernel, in positions that could be read in the same time. Measured on CPU:
# about 30 us per call, 0.07 us per position. On a GPU reading is nearly free, but calls are not.
CALL_COST_CPU = 512
CALL_COST_GPU = 65536


class RollingRunner(Runner):
    """Flattens the step's tokens to `[1, tokens]`. Decoding sequences come first, in slot order."""

    takes_partial_prompts = True

    def __init__(self, model: Any) -> None:
        self._model = model
        self._device: torch.device = model.get_input_embeddings().weight.device
        self._call_cost = CALL_COST_CPU if self._device.type == "cpu" else CALL_COST_GPU
        self._cache = KVCache()
        self._slots: list[Sequence] = []
        self.windows: dict[int, int | None] = {}
        """Sliding window of each layer, as the layer passed it in the last step."""

    def forward(self, chunks: list[Chunk]) -> torch.Tensor:
        """Compute all chunks. New sequences get a slot first."""
        self._slots += [chunk.sequence for chunk in chunks if chunk.start == 0]
        self._cache.reserve(len(self._slots), max(chunk.stop for chunk in chunks))
        slot_of = {id(sequence): slot for slot, sequence in enumerate(self._slots)}
        placed = [(slot_of[id(chunk.sequence)], chunk) for chunk in chunks]
        decode = sorted(((slot, chunk) for slot, chunk in placed if chunk.decodes), key=lambda pair: pair[0])
        prefill = [(slot, chunk) for slot, chunk in placed if not chunk.decodes]
        ordered = decode + prefill
        ends = list(accumulate(chunk.stop - chunk.start for _, chunk in ordered))

        token_ids = [token for _, chunk in ordered for token in chunk.token_ids]
        slots = [slot for slot, chunk in ordered for _ in range(chunk.start, chunk.stop)]
        positions = self._tensor([position for _, chunk in ordered for position in range(chunk.start, chunk.stop)])
        end_of = {id(chunk): end for (_, chunk), end in zip(ordered, ends, strict=True)}
        wanted = [row for chunk in chunks for row in range(end_of[id(chunk)] - chunk.num_logits, end_of[id(chunk)])]

        layout = BatchLayout(
            cache=self._cache,
            slots=self._tensor(slots),
            positions=positions,
            decode=decode_groups([slot for slot, _ in decode], [chunk.stop for _, chunk in decode], self._call_cost),
            prefill=[
                PrefillSegment(end - (chunk.stop - chunk.start), end, slot, chunk.start)
                for (slot, chunk), end in zip(prefill, ends[len(decode) :], strict=True)
            ],
        )
        with torch.inference_mode():
            output = self._model(
                input_ids=self._tensor(token_ids)[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=self._tensor(wanted or [0]),  # not every model and kernel accepts an empty list
                rolling_batch=layout,
            )
        self.windows = layout.windows
        logits: torch.Tensor = output.logits[0, : len(wanted)]
        return logits

    @property
    def layers_computed(self) -> int:
        """Number of cache writes. Each layer writes once per forward pass."""
        return self._cache.num_writes

    def release(self, sequence: Sequence) -> None:
        """Free the sequence's slot. The last slot moves into it, so the used slots have no gaps."""
        if sequence not in self._slots:
            return
        slot, last = self._slots.index(sequence), self._slots.pop()
        with torch.inference_mode():
            if sequence.failed:
                self._cache.erase(slot)
            if last is not sequence:
                self._slots[slot] = last
                self._cache.move(len(self._slots), slot, last.num_computed)

    def _tensor(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._device)


def decode_groups(slots: list[int], lengths: list[int], call_cost: int) -> list[DecodeGroup]:
    """Group ascending `slots`. A new group starts after a gap, or if reading short sequences as long ones costs more.

    `lengths[i]` is the number of cached tokens of `slots[i]`. Every sequence of a group is read up to the longest one.
    `call_cost` is the cost of one more group, in tokens read.
    """
    groups: list[DecodeGroup] = []
    for token, (slot, length) in enumerate(zip(slots, lengths, strict=True)):
        if groups and slots[token - 1] == slot - 1:
            group = groups[-1].lengths
            apart = len(group) * max(group) + length + call_cost
            if (len(group) + 1) * max(*group, length) <= apart:
                group.append(length)
                continue
        groups.append(DecodeGroup(first_token=token, first_slot=slot, lengths=[length]))
    return groups
