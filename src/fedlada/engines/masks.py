"""A counter-based generator of masks: integer operations, the same on every device, alone, under vmap and joint."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

GOLDEN = -7046029254386353131  # 2^64 over the golden ratio, as a signed number


def mixed(x: Tensor) -> Tensor:
    """Every bit of the result depends on every bit of x (int64); SplitMix64's finaliser."""
    x = (x ^ _shifted(x, 30)) * -4658895280553007687
    x = (x ^ _shifted(x, 27)) * -7723592293110705685
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    """Logical right shift."""
    return x.bitwise_right_shift(by).bitwise_and(2 ** (64 - by) - 1)


class Elements:
    """A hash (int32) for each element of a tensor, computed once per shape.

    A CUDA graph reads them in place, so nothing is freed unless `most` limits the number of shapes.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.made: dict[tuple[tuple[int, ...], torch.device], Tensor] = {}

    def of(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """The numbers for that shape; those of a smaller shape are the first of a larger one's along each axis."""
        key = (tuple(shape), device)
        if key not in self.made:
            found = torch.zeros((), dtype=torch.int64, device=device)
            for size in shape:
                found = mixed(found[..., None] + torch.arange(1, size + 1, device=device) * GOLDEN)
            found = (found >> 32).to(torch.int32)
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                return found  # its memory belongs to the graph
            if len(self.made) == self.most:
                self.made.clear()
            self.made[key] = found
        return self.made[key]


class _Kept(torch.autograd.Function):
    """Masks of one key, or of `[C]` keys; under vmap those of all clients at once."""

    @staticmethod
    def forward(elements: Tensor, low: Tensor, high: Tensor, limit: int) -> Tensor:
        kernel = _kernel(elements.device)
        if kernel is not None:
            kept = kernel(elements, low.reshape(-1), high.reshape(-1), limit)
            return kept if low.ndim else kept[0]
        low, high = (one.view(*one.shape, *([1] * elements.ndim)) if one.ndim else one for one in (low, high))
        x = (elements ^ low) * 0x7FEB352D
        x = x ^ ((x >> 15) & 0x1FFFF)
        x = (x + high) * -2073254261
        return x >= limit

    @staticmethod
    def setup_context(ctx: Any, _inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(_info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
        """Keys are per client, elements are shared."""
        assert in_dims[:3] == (None, 0, 0)
        kept: Tensor = _Kept.apply(*arguments)  # type: ignore[no-untyped-call]
        return kept, 0


@cache
def _kernel(device: torch.device) -> Callable[[Tensor, Tensor, Tensor, int], Tensor] | None:
    """The GPU kernel, if it can be compiled; the masks are the same without it."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    from fedlada.engines.stacked.triton_masks import keep  # needs a GPU's torch

    number = torch.zeros(1, dtype=torch.int32, device=device)
    try:
        keep(number, number, number, 0)
    except Exception:  # there is no compiler
        return None
    return keep


def kept_places(elements: Tensor, low: Tensor, high: Tensor, p: float) -> Tensor:
    """The mask of kept elements, each with probability 1 - p; for keys `[C]` the masks are `[C, ...]`."""
    limit = round(p * 2**32) - 2**31
    if limit >= 2**31:
        return torch.zeros((*low.shape, *elements.shape), dtype=torch.bool, device=elements.device)
    kept: Tensor = _Kept.apply(elements, low, high, limit)  # type: ignore[no-untyped-call]
    return kept
