"""Chooses a dtype that this CPU computes with natively, without converting the weights for every product."""

from __future__ import annotations

import logging
import platform

import torch

logger = logging.getLogger(__name__)


def is_emulated(dtype: torch.dtype) -> bool:
    """Tell whether this CPU has no native arithmetic for `dtype`. Emulation is several times slower than float32.

    `ONEDNN_MAX_CPU_ISA` is respected if it excludes AVX-512 altogether, but not if it excludes only the bfloat16
    instructions of AVX-512. Without oneDNN, both 16-bit types are emulated.
    """
    if dtype not in (torch.bfloat16, torch.float16):
        return False
    if not torch._C._has_mkldnn:  # noqa: SLF001 (the same private checks as in torch.compile)
        return True
    if dtype == torch.float16:
        return not torch.ops.mkldnn._is_mkldnn_fp16_supported()  # noqa: SLF001
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():  # noqa: SLF001
        return True
    # oneDNN reports support on every AVX-512 CPU, even if it has to convert each operand to float32 first.
    on_x86 = platform.machine() in ("x86_64", "AMD64")
    return on_x86 and not torch.cpu._is_avx512_bf16_supported()  # noqa: SLF001


def choose_cpu_dtype(asked: torch.dtype | None, own: torch.dtype | None) -> torch.dtype:
    """Return the dtype to load the weights with on this CPU, and log it with the reason.

    `asked` is `option.dtype`, None for `auto`. `own` is the model's dtype, None if its configuration names none.
    """
    if asked is not None:
        chosen, reason = asked, "set by option.dtype"
        if is_emulated(asked):
            logger.warning(
                f"option.dtype: this CPU has no {_name(asked)} arithmetic and is slow at emulating it; float32 is faster",
                extra={"dtype": _name(asked)},
            )
    elif own is None:
        chosen, reason = torch.float32, "config.json names no type"
    elif is_emulated(own):
        chosen = torch.float32
        reason = (
            f"the model's own {_name(own)} is emulated on this CPU; "
            f"option.dtype={_name(own)} takes half the memory but is several times slower"
        )
    else:
        chosen, reason = own, "the model's own"
    logger.info("dtype selected", extra={"dtype": _name(chosen), "reason": reason})
    return chosen


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
