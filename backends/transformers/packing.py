"""Fast linear layers for the CPU.

Weights are kept in oneDNN's own layout. PyTorch's linear layer converts them on every call, which costs more than the
product itself if there are few tokens. Layers with the same input are computed as one product.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class PackedLinear(nn.Module):
    """`torch.nn.Linear` for inference on the CPU: `[..., in_features]` -> `[..., out_features]`."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        # The two operators that torch.compile uses for a linear layer on the CPU. They have no public name.
        self._linear = torch.ops.mkldnn._linear_pointwise.default  # noqa: SLF001
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach())  # noqa: SLF001
        self._bias = None if bias is None else bias.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._linear(x, self._weight, self._bias, "none", [], "")
        return out


class MergedLinear:
    """Several linear layers with the same input, computed as one product."""

    def __init__(self, linears: list[nn.Linear]) -> None:
        weight = torch.cat([linear.weight.detach() for linear in linears])
        bias = None if linears[0].bias is None else torch.cat([linear.bias.detach() for linear in linears])
        self._linear = PackedLinear(weight, bias)
        self._sizes = [linear.out_features for linear in linears]
        self._input: torch.Tensor | None = None
        self._parts: list[torch.Tensor | None] = []

    def part(self, number: int, x: torch.Tensor) -> torch.Tensor:
        """Return the output of layer `number` for `x`. The first call for an input computes all layers."""
        part = self._parts[number] if x is self._input else None
        if part is None:
            self._input = x
            self._parts = list(self._linear(x).split(self._sizes, dim=-1))
            part = self._parts[number]
            assert part is not None  # noqa: S101 (for the type checker)
        self._parts[number] = None
        if not any(other is not None for other in self._parts):
            self._input = None
        return part


class LinearPart(nn.Module):
    """Replaces one of the layers in a `MergedLinear`."""

    def __init__(self, merged: MergedLinear, number: int, linear: nn.Linear) -> None:
        super().__init__()
        self.out_features, self.in_features = linear.weight.shape
        self._merged = merged
        self._number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._merged.part(self._number, x)


class LinearInputs:
    """Records which linear layers get the same tensor as input during a forward pass.

    Use it as a context manager around the forward pass. Then `siblings` has the names, each list in call order.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._handles: list[Any] = []
        self._seen: dict[tuple[str, int], list[str]] = defaultdict(list)
        self._alive: list[torch.Tensor] = []  # an `id` is only unique while its tensor is alive

    def __enter__(self) -> LinearInputs:
        for name, module in self._model.named_modules():
            if type(module) is nn.Linear:
                self._handles.append(module.register_forward_pre_hook(self._note(name)))
        return self

    def __exit__(self, *_exc: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._alive.clear()

    @property
    def siblings(self) -> list[list[str]]:
        """Groups of two or more layer names with the same parent that always got the same tensor."""
        groups = {tuple(names) for names in self._seen.values()}
        in_groups = Counter(name for names in groups for name in names)
        return [list(names) for names in groups if len(names) > 1 and all(in_groups[name] == 1 for name in names)]

    def _note(self, name: str) -> Callable[[nn.Module, tuple[torch.Tensor, ...]], None]:
        def hook(_module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            self._alive.append(args[0])
            self._seen[name.rpartition(".")[0], id(args[0])].append(name)

        return hook


def can_pack(model: nn.Module) -> bool:
    """Tell whether all weights are on the CPU, in a dtype that oneDNN supports here, and not moved by hooks."""
    if not torch._C._has_mkldnn:  # noqa: SLF001 (the same private checks as in torch.compile)
        return False
    supported = {torch.float32}
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():  # noqa: SLF001
        supported.add(torch.bfloat16)
    if torch.ops.mkldnn._is_mkldnn_fp16_supported():  # noqa: SLF001
        supported.add(torch.float16)
    if any(hasattr(module, "_hf_hook") for module in model.modules()):
        return False
    return all(p.device.type == "cpu" and p.dtype in supported for p in model.parameters())


def pack(model: nn.Module, siblings: list[list[str]]) -> dict[str, nn.Module]:
    """Replace every plain `nn.Linear` in `model`, and merge `siblings`. Returns the original layers by name."""
    linears: dict[str, nn.Linear] = {n: m for n, m in model.named_modules() if type(m) is nn.Linear}
    replaced: dict[str, nn.Module] = dict(linears)
    packed: dict[str, nn.Module] = {}
    for names in siblings:
        group = [linears[name] for name in names]
        if len({(linear.in_features, linear.weight.dtype, linear.bias is None) for linear in group}) == 1:
            merged = MergedLinear(group)
            packed |= {name: LinearPart(merged, i, linears[name]) for i, name in enumerate(names)}
    packed |= {n: PackedLinear(m.weight, m.bias) for n, m in linears.items() if n not in packed}
    unpack(model, packed)
    return replaced


def unpack(model: nn.Module, modules: dict[str, nn.Module]) -> None:
    """Set the `modules` in `model` by name."""
    for name, module in modules.items():
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, module)
