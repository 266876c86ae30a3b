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

    def unpacked(self) -> nn.Linear:
        """Return the original layer."""
        return _linear(self._weight.to_dense(), self._bias)


class MergedLinear:
    """Several linear layers with the same input, computed as one product."""

    def __init__(self, linears: list[nn.Linear]) -> None:
        weight = torch.cat([linear.weight.detach() for linear in linears])
        bias = None if linears[0].bias is None else torch.cat([linear.bias.detach() for linear in linears])
        self._linear = PackedLinear(weight, bias)
        self._sizes = [linear.out_features for linear in linears]
        self._input: torch.Tensor | None = None
        self._parts: list[torch.Tensor | None] = []
        self._left = 0

    def part(self, number: int, x: torch.Tensor) -> torch.Tensor:
        """Return the output of layer `number` for `x`. The first call for an input computes all layers."""
        part = self._parts[number] if x is self._input else None
        if part is None:
            self._input = x
            self._parts = list(torch.split_with_sizes(self._linear(x), self._sizes, -1))
            self._left = len(self._parts)
            part = self._parts[number]
            assert part is not None  # noqa: S101 (for the type checker)
        self._parts[number] = None
        self._left -= 1
        if not self._left:
            self._input = None
        return part

    def unpacked(self, number: int) -> nn.Linear:
        """Return the original layer `number`."""
        whole = self._linear.unpacked()
        at = slice(sum(self._sizes[:number]), sum(self._sizes[: number + 1]))
        return _linear(whole.weight[at].clone(), None if whole.bias is None else whole.bias[at].clone())


class LinearPart(nn.Module):
    """Replaces one of the layers in a `MergedLinear`."""

    def __init__(self, merged: MergedLinear, number: int, linear: nn.Linear) -> None:
        super().__init__()
        self.out_features, self.in_features = linear.weight.shape
        self._merged = merged
        self._number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._merged.part(self._number, x)

    def unpacked(self) -> nn.Linear:
        """Return the original layer."""
        return self._merged.unpacked(self._number)


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


def pack(model: nn.Module, siblings: list[list[str]]) -> None:
    """Replace every plain `nn.Linear` in `model`, and merge `siblings`.

    Each original is dropped before the next one is packed, so that the weights are never in memory twice.
    """
    names = [name for name, module in model.named_modules() if type(module) is nn.Linear]
    in_groups = {name for group in siblings for name in group}
    for group in [*siblings, *([name] for name in names if name not in in_groups)]:
        linears: list[Any] = [model.get_submodule(name) for name in group]
        if len(group) > 1 and len({(x.in_features, x.weight.dtype, x.bias is None) for x in linears}) == 1:
            merged = MergedLinear(linears)
            packed: list[nn.Module] = [LinearPart(merged, number, linear) for number, linear in enumerate(linears)]
        else:
            packed = [PackedLinear(linear.weight, linear.bias) for linear in linears]
        for name, module in zip(group, packed, strict=True):
            model.set_submodule(name, module)


def unpack(model: nn.Module) -> None:
    """Undo `pack`, layer by layer. The weights are the same as before."""
    names = [name for name, module in model.named_modules() if isinstance(module, PackedLinear | LinearPart)]
    for name in names:
        packed: Any = model.get_submodule(name)
        model.set_submodule(name, packed.unpacked())


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear
