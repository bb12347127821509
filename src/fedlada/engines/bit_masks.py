"""Dropout by bit masks, on a CPU: the bits of `torch.where`, which costs there several times as much."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedlada.engines.tracing import is_tracing

WORDS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
"""Integers of a number's size."""


def can_mask(x: Tensor) -> bool:
    """Whether `masked` applies: to plain tensors, neither recorded nor under a transform such as vmap.

    Other layouts are left to `torch.where`, whose result then has another layout than x.
    """
    if x.device.type != "cpu" or x.dtype not in WORDS or type(x) is not Tensor or not x.is_contiguous():
        return False
    is_recorded = is_tracing() or torch.compiler.is_compiling()
    return not is_recorded and torch._C._functorch.peek_interpreter_stack() is None


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
        return _Masked.apply(grad, *ctx.saved_tensors, ctx.scale), None, None  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
        return _Masked.apply(tangent, *ctx.saved_tensors, ctx.scale)  # type: ignore[no-untyped-call]
