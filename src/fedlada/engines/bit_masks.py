"""Dropout by bit masks, on a CPU: the same bits as by `torch.where`, in less time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedlada.engines.tracing import is_plain

WORDS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
"""Integers of a number's size."""


def can_mask(x: Tensor) -> bool:
    """Whether `masked` applies: to plain tensors, neither recorded nor under a transform such as vmap.

    The result is contiguous, also where images have the channels last, because dropout comes before flat layers most
    often. Other layouts are left to `torch.where`.
    """
    is_dense = x.is_contiguous() or (x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last))
    return x.device.type == "cpu" and x.dtype in WORDS and is_dense and is_plain(x)


def masked(x: Tensor, bits: Tensor, scale: float) -> Tensor:
    """x * scale where all bits are set, zero where none is; `bits` (int32) has the shape of x."""
    result: Tensor = _Masked.apply(x, bits.to(WORDS[x.dtype]), scale)  # type: ignore[no-untyped-call]
    return result


class _Masked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bits: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(bits)
        ctx.save_for_forward(bits)
        ctx.scale = scale
        result = x.contiguous() * scale
        result.view(bits.dtype).bitwise_and_(bits)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _again(ctx, grad), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
        return _again(ctx, tangent)


def _again(ctx: Any, x: Tensor) -> Any:
    """The same mask of a gradient or tangent; of many at once they are under vmap."""
    (bits,) = ctx.saved_tensors
    if is_plain(x):
        return _Masked.apply(x, bits, ctx.scale)  # type: ignore[no-untyped-call]
    return torch.where(bits != 0, x * ctx.scale, torch.zeros((), dtype=x.dtype))
