"""GroupNorm with a shortcut and ReLU as one kernel, forward and back. One program computes one group of one sample.

x and y are `[N, places, channels]` in memory; scale and shift are `[C, channels]`, each client's for its N / C samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedlada.engines.stacked.kernels import Affine, NormShape
from fedlada.engines.stacked.triton_launch import launch

LARGEST_TILE = 4096


@triton.jit(do_not_specialize=("places", "batch", "groups", "adds", "relu"))
def _forward(
    x, add, y, scale, shift, means, rstds, places, channels, each, batch, groups, client_stride, eps, adds, relu,
    PIECES: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0) // groups
    group = tl.program_id(0) % groups
    client = (sample // batch).to(tl.int64)
    c = tl.arange(0, BC)
    own = group * each + c
    base = sample.to(tl.int64) * places * channels + own
    count = places * each
    total = tl.zeros((BP, BC), dtype=tl.float32)
    for piece in range(PIECES):
        p = piece * BP + tl.arange(0, BP)
        mask = (p < places)[:, None] & (c < each)[None, :]
        total += tl.load(x + base[None, :] + p[:, None] * channels, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(total) / count
    square = tl.zeros((BP, BC), dtype=tl.float32)
    for piece in range(PIECES):
        p = piece * BP + tl.arange(0, BP)
        mask = (p < places)[:, None] & (c < each)[None, :]
        value = tl.load(x + base[None, :] + p[:, None] * channels, mask=mask, other=0.0).to(tl.float32)
        distance = tl.where(mask, value - mean, 0.0)
        square += distance * distance
    rstd = 1 / tl.sqrt(tl.sum(square) / count + eps)
    tl.store(means + tl.program_id(0), mean)
    tl.store(rstds + tl.program_id(0), rstd)
    a = tl.load(scale + client * client_stride + own, mask=c < each, other=0.0).to(tl.float32)
    b = tl.load(shift + client * client_stride + own, mask=c < each, other=0.0).to(tl.float32)
    for piece in range(PIECES):
        p = piece * BP + tl.arange(0, BP)
        mask = (p < places)[:, None] & (c < each)[None, :]
        offset = base[None, :] + p[:, None] * channels
        value = tl.load(x + offset, mask=mask, other=0.0).to(tl.float32)
        out = (value - mean) * rstd * a[None, :] + b[None, :]
        if adds:
            out += tl.load(add + offset, mask=mask, other=0.0).to(tl.float32)
        if relu:
            out = tl.maximum(out, 0.0)
        tl.store(y + offset, out.to(y.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=("places", "batch", "groups", "adds", "relu"))
def _backward(
    dy, x, y, scale, means, rstds, dx, dadd, parts, places, channels, each, batch, groups, client_stride, part_stride,
    adds, relu, PIECES: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0) // groups
    group = tl.program_id(0) % groups
    client = (sample // batch).to(tl.int64)
    c = tl.arange(0, BC)
    own = group * each + c
    base = sample.to(tl.int64) * places * channels + own
    mean = tl.load(means + tl.program_id(0))
    rstd = tl.load(rstds + tl.program_id(0))
    a = tl.load(scale + client * client_stride + own, mask=c < each, other=0.0).to(tl.float32)
    by_shift = tl.zeros((BC,), dtype=tl.float32)
    by_scale = tl.zeros((BC,), dtype=tl.float32)
    for piece in range(PIECES):
        p = piece * BP + tl.arange(0, BP)
        mask = (p < places)[:, None] & (c < each)[None, :]
        offset = base[None, :] + p[:, None] * channels
        grad = tl.load(dy + offset, mask=mask, other=0.0).to(tl.float32)
        if relu:
            grad = tl.where(tl.load(y + offset, mask=mask, other=0.0).to(tl.float32) > 0, grad, 0.0)
        value = tl.load(x + offset, mask=mask, other=0.0).to(tl.float32)
        by_shift += tl.sum(grad, axis=0)
        by_scale += tl.sum(grad * (value - mean) * rstd, axis=0)
    tl.store(parts + sample * channels + own, by_scale, mask=c < each)
    tl.store(parts + part_stride + sample * channels + own, by_shift, mask=c < each)
    count = places * each
    first = tl.sum(by_shift * a) / count
    second = tl.sum(by_scale * a) / count
    for piece in range(PIECES):
        p = piece * BP + tl.arange(0, BP)
        mask = (p < places)[:, None] & (c < each)[None, :]
        offset = base[None, :] + p[:, None] * channels
        grad = tl.load(dy + offset, mask=mask, other=0.0).to(tl.float32)
        if relu:
            grad = tl.where(tl.load(y + offset, mask=mask, other=0.0).to(tl.float32) > 0, grad, 0.0)
        if adds:
            tl.store(dadd + offset, grad.to(dadd.dtype.element_ty), mask=mask)
        normed = (tl.load(x + offset, mask=mask, other=0.0).to(tl.float32) - mean) * rstd
        tl.store(dx + offset, ((grad * a[None, :] - first - normed * second) * rstd).to(dx.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=("batch",))
def _sum_samples(
    parts, by_scale, by_shift, channels, batch, client_stride, part_stride, BS: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """Sum the parts of each client's samples, in their order."""
    client = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    scales = tl.zeros((BC,), dtype=tl.float32)
    shifts = tl.zeros((BC,), dtype=tl.float32)
    for start in range(0, batch, BS):
        s = start + tl.arange(0, BS)
        mask = (s < batch)[:, None] & (c < channels)[None, :]
        offset = (client * batch + s)[:, None] * channels + c[None, :]
        scales += tl.sum(tl.load(parts + offset, mask=mask, other=0.0), axis=0)
        shifts += tl.sum(tl.load(parts + part_stride + offset, mask=mask, other=0.0), axis=0)
    tl.store(by_scale + client * client_stride + c, scales.to(by_scale.dtype.element_ty), mask=c < channels)
    tl.store(by_shift + client * client_stride + c, shifts.to(by_shift.dtype.element_ty), mask=c < channels)


def forward(x: Tensor, add: Tensor | None, affine: Affine, shape: NormShape) -> tuple[Tensor, tuple[Tensor, ...]]:
    """y, and the means and inverse deviations of all groups."""
    samples, channels = x.shape[:2]
    places, each = x[0, 0].numel(), channels // shape.groups
    y = torch.empty_like(x)
    means, rstds = torch.empty((2, samples * shape.groups), device=x.device, dtype=torch.float32)
    launch(
        _forward, (samples * shape.groups,), x, x if add is None else add, y, affine.weight, affine.bias, means, rstds,
        places, channels, each, samples // len(affine.weight), shape.groups, affine.weight.stride(0), shape.eps,
        int(shape.adds), int(shape.relu), outputs=(y, means, rstds), **_tile(places, each),
    )  # fmt: skip
    return y, (means, rstds)


def backward(
    dy: Tensor, x: Tensor, y: Tensor, saved: Sequence[Tensor], affine: Affine, shape: NormShape
) -> tuple[Tensor, Tensor | None, Tensor]:
    """dx, the gradient of the shortcut, and each sample's part `[2, samples, channels]` of those of scale and shift."""
    samples, channels = x.shape[:2]
    places, each = x[0, 0].numel(), channels // shape.groups
    dx = torch.empty_like(x)
    dadd = torch.empty_like(x) if shape.adds else None
    parts = torch.empty((2, samples, channels), device=x.device, dtype=torch.float32)
    launch(
        _backward, (samples * shape.groups,), dy, x, y, affine.weight, *saved, dx, dx if dadd is None else dadd, parts,
        places, channels, each, samples // len(affine.weight), shape.groups, affine.weight.stride(0), parts.stride(0),
        int(shape.adds), int(shape.relu), outputs=(dx, dadd, parts), **_tile(places, each),
    )  # fmt: skip
    return dx, dadd, parts


def sum_samples(parts: Tensor, affine: Affine) -> None:
    """Write the gradients of scale and shift."""
    clients, (_, samples, channels) = len(affine.weight), parts.shape
    launch(
        _sum_samples, (clients, triton.cdiv(channels, 64)), parts, affine.weight_grad, affine.bias_grad, channels,
        samples // clients, affine.weight_grad.stride(0), parts.stride(0),
        outputs=(affine.weight_grad, affine.bias_grad), BS=64, BC=64, num_warps=4,
    )  # fmt: skip


def _tile(places: int, each: int) -> dict[str, int]:
    """A program's tile: all channels of its group, and as many positions at once as registers hold."""
    wide = triton.next_power_of_2(each)
    high = min(triton.next_power_of_2(places), max(1, LARGEST_TILE // wide))
    return {"PIECES": triton.cdiv(places, high), "BP": high, "BC": wide, "num_warps": 4 if wide * high >= 1024 else 2}
