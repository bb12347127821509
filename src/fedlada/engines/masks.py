"""A counter-based generator of masks: integer operations, the same on every device, alone, under vmap and joint."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedlada.engines.tracing import is_tracing
from fedlada.federation.randomness import GOLDEN, mixed

Key = TypeVar("Key")


class Elements:
    """Hashes that masks are made of, computed once for each shape.

    A CUDA graph reads them in place, so nothing is freed unless `most` limits the number of shapes.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.made: dict[tuple[tuple[int, ...], torch.device], Tensor] = {}
        self.numbers: dict[tuple[int, int, torch.device], Tensor] = {}

    def of(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """One (int32) for each element; those of a smaller shape are the first of a larger one's along each axis."""
        key = (tuple(shape), device)
        if key not in self.made and len(self.made) == self.most:
            self.made.clear()
        return _once(self.made, key, lambda: _hashes(shape, device), device)

    def calls(self, first: int, count: int, device: torch.device) -> Tensor:
        """One (int64) for each of so many calls in a forward pass."""
        return _once(self.numbers, (first, count, device), lambda: _multiples(first, count, device), device)


def _hashes(shape: Sequence[int], device: torch.device) -> Tensor:
    found = torch.zeros((), dtype=torch.int64, device=device)
    for size in shape:
        found = mixed(found[..., None] + _multiples(0, size, device))
    return (found >> 32).to(torch.int32)


def _multiples(first: int, count: int, device: torch.device) -> Tensor:
    return torch.arange(first + 1, first + count + 1, device=device) * GOLDEN


def _once(made: dict[Key, Tensor], key: Key, make: Callable[[], Tensor], device: torch.device) -> Tensor:
    if key not in made:
        if is_tracing():  # torch's compiler would compute them with 32 bits
            raise RuntimeError("the hashes of dropout masks must be made before a graph is recorded")
        found = make()
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return found  # its memory belongs to the graph
        made[key] = found
    return made[key]


class _Kept(torch.autograd.Function):
    """Masks of one key, or of `[C]` keys; under vmap those of all clients at once."""

    @staticmethod
    def forward(elements: Tensor, low: Tensor, high: Tensor, limit: int) -> Tensor:
        kernel = None if is_tracing() else _kernel(elements.device)
        if kernel is not None:
            kept = kernel(elements, low.reshape(-1), high.reshape(-1), limit)
            return kept if low.ndim else kept[0]
        return _drawn(elements, low, high) >= limit

    @staticmethod
    def setup_context(ctx: Any, _inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(_info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
        """Keys are per client, elements are shared."""
        assert in_dims[:3] == (None, 0, 0)
        kept: Tensor = _Kept.apply(*arguments)  # type: ignore[no-untyped-call]
        return kept, 0


def _drawn(elements: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """A random number (int32) for each element and key."""
    low, high = (one.view(*one.shape, *([1] * elements.ndim)) if one.ndim else one for one in (low, high))
    x = (elements ^ low).mul_(0x7FEB352D)  # in place from here on, which is faster on a CPU
    x.bitwise_xor_((x >> 15).bitwise_and_(0x1FFFF))
    return x.add_(high).mul_(-2073254261)


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


def kept_bits(elements: Tensor, low: Tensor, high: Tensor, p: float) -> Tensor:
    """The same mask as words (int32) of 32 equal bits: all set, -1, where an element is kept."""
    limit = round(p * 2**32) - 2**31
    drawn = _drawn(elements, low, high)
    return drawn.zero_() if limit >= 2**31 else drawn.ge_(limit).neg_()
