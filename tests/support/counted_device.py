"""A GPU that is not there: tensors on it are in the main memory, and what would cross the bus is counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend()
DEVICE = torch.device("privateuseone", 0)
_WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2"}
"""Operations whose result the CPU needs to go on."""
_INDEXES = {"index", "index_put", "index_put_", "_index_put_impl_"}


class OnDevice(torch.Tensor):
    """A tensor that says it is on the GPU."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> OnDevice:
        made: OnDevice = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        made.held = held
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"OnDevice({self.held})"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch calls it with `func`, whatever its annotations say
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise RuntimeError(f"{func} outside of CountedDevice")


class _FromLists(TorchFunctionMode):
    """Makes tensors on the CPU before they are copied to the device, as for a real one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.asarray) and torch.device(kwargs.get("device") or "cpu").type == DEVICE.type:
            del kwargs["device"]
            return func(*args, **kwargs).to(DEVICE)
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) and isinstance(args[0], OnDevice):
            index = torch.tensor(args[1]).to(DEVICE) if isinstance(args[1], list) else args[1]
            args = (args[0], index, *args[2:])
        return func(*args, **kwargs)


class _Again(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """For the parts of an operation, which inference mode passes on as a whole."""

    def __init__(self, device: CountedDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._device.__torch_dispatch__(func, types, args, kwargs)


class CountedDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """While it is active, `DEVICE` has the values of its tensors.

    `waits` counts the operations that make the CPU wait for the GPU, and `copies` those that need not.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.waits: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()
        self._from_lists = _FromLists()

    def __enter__(self) -> CountedDevice:
        self._from_lists.__enter__()  # type: ignore[no-untyped-call]  # torch's own
        super().__enter__()  # type: ignore[no-untyped-call]  # torch's own
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch's own
        self._from_lists.__exit__(*error)  # type: ignore[no-untyped-call]  # torch's own

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction(), _Again(self):
            parts = func.decompose(*args, **(kwargs or {}))
        if parts is not NotImplemented:
            return parts
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        on_device = any(isinstance(tensor, OnDevice) for tensor in tensors)
        target = kwargs.get("device")
        if name == "_has_compatible_shallow_copy_type":
            return False
        if name in ("_to_copy", "copy_"):
            source = args[1] if name == "copy_" else args[0]
            there = isinstance(args[0], OnDevice) if name == "copy_" or target is None else target.type == DEVICE.type
            if isinstance(source, OnDevice) != there:
                self._crosses(name, non_blocking=bool(kwargs.get("non_blocking", args[2:] == (True,))))
            on_device = there
        elif name in _INDEXES:
            for index in args[1]:
                if isinstance(index, OnDevice) and index.dtype in (torch.bool, torch.uint8):
                    self.waits["nonzero"] += 1
                elif index is not None and on_device and not isinstance(index, OnDevice):
                    self._crosses("index")
        else:
            if on_device and name in _WAITS:
                self.waits[name] += 1
            if on_device and any(tensor.dim() > 0 and not isinstance(tensor, OnDevice) for tensor in tensors):
                raise RuntimeError(f"{name} of tensors on different devices")
            if target is not None:
                on_device = target.type == DEVICE.type
        if target is not None:
            kwargs["device"] = torch.device("cpu")
        kwargs.pop("pin_memory", None)
        held = tree_map_only(OnDevice, lambda tensor: tensor.held, (args, kwargs))
        results = func(*held[0], **held[1])
        if not on_device:
            return results
        known = {id(tensor.held): tensor for tensor in tensors if isinstance(tensor, OnDevice)}
        return tree_map_only(
            torch.Tensor, lambda tensor: known[id(tensor)] if id(tensor) in known else OnDevice(tensor), results
        )

    def _crosses(self, name: str, *, non_blocking: bool = False) -> None:
        (self.copies if non_blocking else self.waits)[name] += 1
