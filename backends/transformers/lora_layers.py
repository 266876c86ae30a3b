"""Adds LoRA adapters to a model's layers: several adapters and the model itself in one forward pass.

The low-rank matrices of all adapters in a step are joined per layer, so a layer needs two more products, however many
adapters there are. In between, each token's values for other adapters are set to zero. While no adapter is in use, the
model has no hooks, so it is as fast as without adapters.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from backends.paged.options import DEFAULT_MAX_LORAS
from backends.transformers.layout import index_tensors
from backends.transformers.lora import LoraAdapter, LoraWeights, Shapes

Ranks = tuple[int, ...]
"""The rank of each adapter in a layer, in order. 0 if it does not change the layer."""


class AdaptableLayers:
    """Watches forward passes of `model`, which have no adapters, for the layers that adapters may change.

    These take one row per token and return one, and the model calls them at all, instead of reading their weights. So
    routers, experts, an image model's encoder and the output layer, which may get other rows, are none of them.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        head = model.get_output_embeddings()
        self._candidates = {
            name: module
            for name, module in model.named_modules()
            if module is not head and ".experts." not in name and _shape(module) is not None
        }
        self._handles: list[Any] = []
        self._rows = 0
        self._called: set[str] = set()
        self._unsuitable: set[str] = set()

    def __enter__(self) -> AdaptableLayers:
        self._handles = [self._model.get_input_embeddings().register_forward_hook(self._begin)]
        self._handles += (module.register_forward_hook(self._watch(name)) for name, module in self._candidates.items())
        return self

    def __exit__(self, *_exc: object) -> None:
        for handle in self._handles:
            handle.remove()

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The layers, by name."""
        suitable = self._called - self._unsuitable
        return {name: module for name, module in self._candidates.items() if name in suitable}

    def _begin(self, _module: nn.Module, _args: tuple[Any, ...], output: torch.Tensor) -> None:
        self._rows = output.numel() // output.shape[-1]

    def _watch(self, name: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        shape = _shape(self._candidates[name])

        def note(_module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            self._called.add(name)
            given = args[0] if args else None  # None if it is passed by keyword
            if shape != (_width(given, self._rows), _width(output, self._rows)):
                self._unsuitable.add(name)

        return note


class LoraLayers:
    """The layers of `model` that adapters may change, which are `modules`.

    `max_loras` is the maximum number of adapters in one forward pass. Copies of that many, the ones used last, are kept
    on the model's device.
    """

    def __init__(self, model: Any, modules: Mapping[str, nn.Module], max_loras: int = DEFAULT_MAX_LORAS) -> None:
        self._model = model
        self._max_loras = max_loras
        self._modules = modules
        self._on_device: OrderedDict[LoraAdapter, dict[str, LoraWeights]] = OrderedDict()
        self._handles: list[Any] = []
        self._active: tuple[LoraAdapter, ...] = ()
        self._joined: dict[str, tuple[LoraWeights, Ranks]] = {}
        self._masks: dict[Ranks, torch.Tensor | None] = {}
        self._owners: torch.Tensor | None = None

    @property
    def shapes(self) -> Shapes:
        """Layers that an adapter may change."""
        shapes = ((name, _shape(module)) for name, module in self._modules.items())
        return {name: shape for name, shape in shapes if shape is not None}

    @contextlib.contextmanager
    def adapted(self, parts: Sequence[tuple[LoraAdapter | None, int]]) -> Iterator[None]:
        """Apply adapters during the block. `parts` has the adapter of each part of the batch and its number of tokens."""
        active = {adapter for adapter, _ in parts if adapter is not None}
        if not active:
            self._remove_hooks()
            yield
            return
        if active != set(self._active):
            self._join(tuple(sorted(active, key=lambda adapter: adapter.name)))
        if not self._handles:
            for name in self._joined:
                self._handles.append(self._modules[name].register_forward_hook(self._hook(name)))
        self._masks.clear()
        self._owners = None
        if len({adapter for adapter, _ in parts}) > 1:
            numbers: dict[LoraAdapter | None, int] = {adapter: n for n, adapter in enumerate(self._active)}
            owners = [numbers.get(adapter, -1) for adapter, count in parts for _ in range(count)]
            (self._owners,) = index_tensors([owners], self._model.device)
        yield

    def _join(self, active: tuple[LoraAdapter, ...]) -> None:
        """Join the matrices of `active` layer by layer. They stay joined until other adapters are in use."""
        self._remove_hooks()
        self._joined.clear()  # its memory is for the next ones
        self._active = ()  # until all are joined: memory may not suffice
        copies = [self._copies(adapter) for adapter in active]
        for name in dict.fromkeys(name for layers in copies for name in layers):
            of_layer = [layers.get(name) for layers in copies]
            weights = [weights for weights in of_layer if weights is not None]
            joined = weights[0]
            if len(weights) > 1:
                joined = LoraWeights(torch.cat([w.down for w in weights], 1), torch.cat([w.up for w in weights]))
            self._joined[name] = joined, tuple(0 if w is None else w.up.shape[0] for w in of_layer)
        self._active = active

    def _copies(self, adapter: LoraAdapter) -> dict[str, LoraWeights]:
        """Return the adapter's matrices on the devices of their layers. On the CPU these are no copies."""
        if adapter not in self._on_device:
            while len(self._on_device) >= self._max_loras:
                self._on_device.popitem(last=False)
            self._on_device[adapter] = {
                name: LoraWeights(*(matrix.to(self._device_of(name), non_blocking=True) for matrix in weights))
                for name, weights in adapter.layers.items()
            }
        self._on_device.move_to_end(adapter)
        return self._on_device[adapter]

    def _device_of(self, name: str) -> torch.device:
        parameter = next(self._modules[name].parameters(), None)  # packed layers have none
        device: torch.device = self._model.device if parameter is None else parameter.device
        return device

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook(self, name: str) -> Callable[[nn.Module, tuple[torch.Tensor, ...], torch.Tensor], None]:
        (down, up), ranks = self._joined[name]

        def add(_module: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            inner = args[0].reshape(-1, down.shape[0]) @ down
            mask = self._mask(ranks)
            if mask is not None:
                inner.masked_fill_(mask.to(inner.device), 0.0)  # a product with 0 would keep what is not finite
            output.view(-1, up.shape[1]).addmm_(inner, up)

        return add

    def _mask(self, ranks: Ranks) -> torch.Tensor | None:
        """Return where tokens and columns belong to different adapters, `[tokens, sum of ranks]`.

        None if all tokens belong to one adapter. Most layers have the same ranks, and share their mask.
        """
        if ranks not in self._masks:
            mask = None
            if self._owners is not None:
                columns = [number for number, rank in enumerate(ranks) for _ in range(rank)]
                mask = self._owners[:, None] != index_tensors([columns], self._owners.device)[0]
            self._masks[ranks] = mask
        return self._masks[ranks]


def _width(value: Any, rows: int) -> int | None:
    """Return the length of each row of a tensor that has as many rows, None for anything else."""
    if not isinstance(value, torch.Tensor) or not value.ndim or value.numel() != rows * value.shape[-1]:
        return None
    with contextlib.suppress(RuntimeError):  # the rows are not next to each other
        return value.view(rows, -1).shape[-1]
    return None


def _shape(module: nn.Module) -> tuple[int, int] | None:
    """Return the inputs and outputs of a linear layer of any kind, packed and quantised ones included."""
    if isinstance(module, Conv1D):
        inputs, outputs = module.weight.shape
        return inputs, outputs
    shape = getattr(module, "in_features", None), getattr(module, "out_features", None)
    return None if None in shape else shape  # type: ignore[return-value]  # both are numbers
