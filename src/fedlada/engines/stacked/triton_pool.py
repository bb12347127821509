"""Max-pooling of images that lie channels-last, forward and back: sums have a fixed order, without atomics."""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from fedlada.engines.stacked.triton_launch import launch

COUNTS = ("M", "H", "W", "HO", "WO")
ELEMENTS = 2048
"""Values of one program."""


@triton.jit(do_not_specialize=COUNTS)
def _forward(
    x, y, taps, M, H, W, HO, WO, channels,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    image = (m // (HO * WO)).to(tl.int64)
    top = (m % (HO * WO)) // WO * STRIDE - PAD
    left = m % WO * STRIDE - PAD
    known = (m < M)[:, None] & (c < channels)[None, :]
    best = tl.full((BM, BC), float("-inf"), dtype=tl.float32)
    taken = tl.full((BM, BC), -1, dtype=tl.int32)
    for tap in tl.static_range(SIZE * SIZE):
        h = top + tap // SIZE
        w = left + tap % SIZE
        inside = known & ((h >= 0) & (h < H) & (w >= 0) & (w < W))[:, None]
        place = ((image * H + h) * W + w)[:, None] * channels + c[None, :]
        value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        # As in torch: the first of equal values, and a NaN always.
        better = inside & ((taken < 0) | (value > best) | (value != value))
        best = tl.where(better, value, best)
        taken = tl.where(better, tap, taken)
    place = m.to(tl.int64)[:, None] * channels + c[None, :]
    tl.store(y + place, best.to(y.dtype.element_ty), mask=known)
    tl.store(taps + place, taken.to(tl.int8), mask=known)


@triton.jit(do_not_specialize=COUNTS)
def _backward(
    dy, taps, dx, M, H, W, HO, WO, channels,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, OVERLAP: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    image = (m // (H * W)).to(tl.int64)
    row = (m % (H * W)) // W + PAD
    column = m % W + PAD
    known = (m < M)[:, None] & (c < channels)[None, :]
    total = tl.zeros((BM, BC), dtype=tl.float32)
    # The windows that hold this place: the last one in each direction, and as many before it as overlap.
    for window in tl.static_range(OVERLAP * OVERLAP):
        h = row // STRIDE - window // OVERLAP
        w = column // STRIDE - window % OVERLAP
        tap_h = row - h * STRIDE
        tap_w = column - w * STRIDE
        inside = (h >= 0) & (h < HO) & (w >= 0) & (w < WO) & (tap_h < SIZE) & (tap_w < SIZE)
        place = ((image * HO + h) * WO + w)[:, None] * channels + c[None, :]
        mask = known & inside[:, None]
        taken = tl.load(taps + place, mask=mask, other=-1)
        value = tl.load(dy + place, mask=mask, other=0.0).to(tl.float32)
        total += tl.where(taken == (tap_h * SIZE + tap_w)[:, None], value, 0.0)
    tl.store(dx + m.to(tl.int64)[:, None] * channels + c[None, :], total.to(dx.dtype.element_ty), mask=known)


class MaxPool(nn.MaxPool2d):
    """A `MaxPool2d` of square windows; in all else, such as its settings and hooks, the module that it replaces."""

    constants: dict[str, int]

    @staticmethod
    def of(pool: nn.MaxPool2d) -> MaxPool | None:
        """The same as kernels, where they support its settings."""
        size, stride, padding = (_only(one) for one in (pool.kernel_size, pool.stride, pool.padding))
        plain = _only(pool.dilation) == 1 and not pool.ceil_mode and not pool.return_indices
        if not plain or size is None or stride is None or padding is None or not 1 <= size <= 5:
            return None
        fast = copy.copy(pool)
        fast.__class__ = MaxPool
        assert isinstance(fast, MaxPool)
        fast.constants = {"SIZE": size, "STRIDE": stride, "PAD": padding}
        return fast

    def forward(self, x: Tensor) -> Tensor:
        """The largest value of each window."""
        if x.ndim != 4:  # a single image, or a mistake that torch explains
            return super().forward(x)
        lies_last = x.is_contiguous(memory_format=torch.channels_last)
        result: Tensor = _MaxPool.apply(x, self.constants)
        return result if lies_last else result.contiguous()


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, constants: dict[str, int]) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        height, width = (
            (size + 2 * constants["PAD"] - constants["SIZE"]) // constants["STRIDE"] + 1 for size in x.shape[2:]
        )
        y = _images(x, (*x.shape[:2], height, width))
        taps = torch.empty_like(y, dtype=torch.int8)
        _run(_forward, (x, y, taps), x, y, len(y) * height * width, (y, taps), constants)
        ctx.save_for_backward(taps)
        ctx.constants, ctx.shape = constants, x.shape
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (taps,) = ctx.saved_tensors
        dx = _images(dy, ctx.shape)
        dy = dy.contiguous(memory_format=torch.channels_last)
        places = len(dx) * dx.shape[2] * dx.shape[3]
        constants = ctx.constants | {"OVERLAP": triton.cdiv(ctx.constants["SIZE"], ctx.constants["STRIDE"])}
        _run(_backward, (dy, taps, dx), dx, dy, places, (dx,), constants)
        return dx, None


def _run(
    kernel: Any,
    tensors: tuple[Tensor, ...],
    images: Tensor,
    pooled: Tensor,
    places: int,
    outputs: tuple[Tensor, ...],
    constants: dict[str, int],
) -> None:
    channels = images.shape[1]
    wide = min(64, triton.next_power_of_2(channels))
    high = ELEMENTS // wide
    grid = (triton.cdiv(places, high), triton.cdiv(channels, wide))
    sizes = (places, *images.shape[2:], *pooled.shape[2:], channels)
    launch(kernel, grid, *tensors, *sizes, outputs=outputs, BM=high, BC=wide, **constants)


def _images(like: Tensor, shape: Sequence[int]) -> Tensor:
    return torch.empty(shape, device=like.device, dtype=like.dtype, memory_format=torch.channels_last)


def _only(setting: Any) -> int | None:
    """The number, or both of a pair if they are equal."""
    if isinstance(setting, Sequence):
        return operator.index(setting[0]) if len(set(setting)) == 1 else None
    return operator.index(setting)
