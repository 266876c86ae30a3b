"""Keys and values of the running sequences. Each sequence has one slot, which is written in place."""

from __future__ import annotations

import torch

# A multiple of the CPU attention kernel's block size, and small enough not to waste much memory.
BLOCK_SIZE = 256


class KVCache:
    """Keys and values of each layer, both `[slots, kv_heads, positions, head_dim]`.

    The positions of a head are adjacent because they are read together. On a CPU this is a third faster than storing
    token by token. A layer is allocated when it is first written, because its shape depends on the model. The cache
    grows in slots and positions as needed and never shrinks, because the space will be needed again.
    """

    def __init__(self) -> None:
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.num_slots = 0
        self.num_positions = 0
        self.num_writes = 0
        """Number of layer writes so far: one per layer and forward pass."""

    def reserve(self, num_slots: int, num_positions: int) -> None:
        """Make room for at least `num_slots` sequences of `num_positions` tokens. Keeps the stored data."""
        if num_slots <= self.num_slots and num_positions <= self.num_positions:
            return
        if num_slots > self.num_slots:
            self.num_slots = max(num_slots, 2 * self.num_slots)
        if num_positions > self.num_positions:
            self.num_positions = -(-num_positions // BLOCK_SIZE) * BLOCK_SIZE
        for layer, (keys, values) in self._layers.items():
            self._layers[layer] = self._grown(keys), self._grown(values)

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, index: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store `[kv_heads, tokens, head_dim]` at `index` and return the whole layer.

        `index` has `(slot * kv_heads + head) * num_positions + position` for each head and token, in that order.
        """
        if layer not in self._layers:
            self._layers[layer] = self._empty(keys), self._empty(values)
        stored_keys, stored_values = self._layers[layer]
        stored_keys.flatten(0, 2).index_copy_(0, index, keys.flatten(0, 1))
        stored_values.flatten(0, 2).index_copy_(0, index, values.flatten(0, 1))
        self.num_writes += 1
        return stored_keys, stored_values

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of slot `source` over slot `target`."""
        for keys, values in self._layers.values():
            keys[target, :, :length] = keys[source, :, :length]
            values[target, :, :length] = values[source, :, :length]

    def erase(self, slot: int) -> None:
        """Overwrite a slot with zeros. Some values must not be read again, not even if masked; see `_empty`."""
        for keys, values in self._layers.values():
            keys[slot] = 0
            values[slot] = 0

    def _empty(self, like: torch.Tensor) -> torch.Tensor:
        # Zeros, not uninitialised memory: the value of a masked position is still multiplied by zero, and zero times
        # NaN is NaN.
        return like.new_zeros(self.num_slots, like.shape[0], self.num_positions, like.shape[2])

    def _grown(self, stored: torch.Tensor) -> torch.Tensor:
        grown = stored.new_zeros(self.num_slots, stored.shape[1], self.num_positions, stored.shape[3])
        grown[: stored.shape[0], :, : stored.shape[2]] = stored
        return grown
