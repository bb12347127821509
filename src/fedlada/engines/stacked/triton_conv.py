"""Convolutions of many clients as implicit matrix products: rows are gathered on the fly, no im2col buffer is written.

x is `[C, B, H, W, I]`, weights are `[C, O, KH, KW, I]`, y is `[C, B, HO, WO, O]`; a kernel's last grid axis is the
client.
Taps that only ever see padding are skipped: at 1x1 a padded 3x3 kernel is its centre alone. There are no atomics, so
sums have a fixed order and results repeat bit for bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedlada.engines.stacked.kernels import ConvShape
from fedlada.engines.stacked.triton_launch import launch
from fedlada.engines.stacked.triton_tiles import Geometry, Tile, forward_tile, input_tile, settings, weight_tile

SUM_BLOCK = 512
COUNTS = ("M", "H", "W", "HO", "WO", "KH", "KW", "tap_h", "tap_w", "taps_w", "num_taps")
"""A kernel is compiled once for all values of these; arguments that affect the alignment of addresses are not in it."""


@triton.jit(do_not_specialize=COUNTS)
def _forward(
    x, w, y, M, O, I, H, W, HO, WO, KH, KW, tap_h, tap_w, taps_w, num_taps, x_client, w_client, y_client,
    STRIDE: tl.constexpr, PAD: tl.constexpr, JOINT: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    x += client * x_client
    w += client * w_client
    y += client * y_client
    tiles_n = tl.cdiv(O, BN)
    m = (tl.program_id(0) // tiles_n) * BM + tl.arange(0, BM)
    o = (tl.program_id(0) % tiles_n) * BN + tl.arange(0, BN)
    image = m // (HO * WO)
    top = (m % (HO * WO)) // WO * STRIDE - PAD
    left = m % WO * STRIDE - PAD
    depth = KH * KW * I
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    if JOINT:
        for start in range(0, depth, BK):
            k = start + tl.arange(0, BK)
            h = top[:, None] + (k // (KW * I))[None, :]
            v = left[:, None] + (k % (KW * I) // I)[None, :]
            inside = (m < M)[:, None] & (k < depth)[None, :] & (h >= 0) & (h < H) & (v >= 0) & (v < W)
            a = tl.load(x + ((image[:, None] * H + h) * W + v) * I + (k % I)[None, :], mask=inside, other=0.0)
            b = tl.load(w + o[None, :] * depth + k[:, None], mask=(o < O)[None, :] & (k < depth)[:, None], other=0.0)
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
    else:
        pieces = tl.cdiv(I, BK)
        for number in range(0, num_taps * pieces):
            tap = number // pieces
            kh = tap_h + tap // taps_w
            kw = tap_w + tap % taps_w
            i = (number % pieces) * BK + tl.arange(0, BK)
            h = top + kh
            v = left + kw
            inside = (m < M) & (h >= 0) & (h < H) & (v >= 0) & (v < W)
            rows = ((image * H + h) * W + v) * I
            a = tl.load(x + rows[:, None] + i[None, :], mask=inside[:, None] & (i < I)[None, :], other=0.0)
            b = tl.load(
                w + o[None, :] * depth + ((kh * KW + kw) * I + i)[:, None],
                mask=(o < O)[None, :] & (i < I)[:, None],
                other=0.0,
            )
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
    tl.store(y + m[:, None] * O + o[None, :], acc.to(y.dtype.element_ty), mask=(m < M)[:, None] & (o < O)[None, :])


@triton.jit(do_not_specialize=COUNTS)
def _input_grad(
    dy, w, dx, M, O, I, H, W, HO, WO, KH, KW, tap_h, tap_w, taps_w, num_taps, x_client, w_client, y_client,
    STRIDE: tl.constexpr, PAD: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    dy += client * y_client
    w += client * w_client
    dx += client * x_client
    tiles_n = tl.cdiv(I, BN)
    m = (tl.program_id(0) // tiles_n) * BM + tl.arange(0, BM)
    i = (tl.program_id(0) % tiles_n) * BN + tl.arange(0, BN)
    image = m // (H * W)
    row = (m % (H * W)) // W + PAD
    column = m % W + PAD
    depth = KH * KW * I
    pieces = tl.cdiv(O, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for number in range(0, num_taps * pieces):
        tap = number // pieces
        kh = tap_h + tap // taps_w
        kw = tap_w + tap % taps_w
        o = (number % pieces) * BK + tl.arange(0, BK)
        h = row - kh
        v = column - kw
        inside = (m < M) & (h >= 0) & (v >= 0) & (h % STRIDE == 0) & (v % STRIDE == 0)
        h = h // STRIDE
        v = v // STRIDE
        inside = inside & (h < HO) & (v < WO)
        rows = ((image * HO + h) * WO + v) * O
        a = tl.load(dy + rows[:, None] + o[None, :], mask=inside[:, None] & (o < O)[None, :], other=0.0)
        b = tl.load(
            w + o[:, None] * depth + ((kh * KW + kw) * I + i)[None, :],
            mask=(o < O)[:, None] & (i < I)[None, :],
            other=0.0,
        )
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    tl.store(dx + m[:, None] * I + i[None, :], acc.to(dx.dtype.element_ty), mask=(m < M)[:, None] & (i < I)[None, :])


@triton.jit(do_not_specialize=COUNTS)
def _weight_grad(
    x, dy, dw, M, O, I, H, W, HO, WO, KH, KW, tap_h, tap_w, taps_w, num_taps, x_client, w_client, y_client,
    part, dw_part,
    STRIDE: tl.constexpr, PAD: tl.constexpr, JOINT: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    x += client * x_client
    dy += client * y_client
    dw += client * w_client + tl.program_id(1).to(tl.int64) * dw_part
    depth = KH * KW * I
    pieces = tl.cdiv(depth, BN) if JOINT else tl.cdiv(I, BN)
    tiles_n = pieces if JOINT else num_taps * pieces
    tile = tl.program_id(0) % tiles_n
    o = (tl.program_id(0) // tiles_n) * BM + tl.arange(0, BM)
    if JOINT:
        k = tile * BN + tl.arange(0, BN)
        kh = k // (KW * I)
        kw = k % (KW * I) // I
        i = k % I
        known = k < depth
    else:
        tap = tile // pieces
        kh = tap_h + tap // taps_w
        kw = tap_w + tap % taps_w
        i = (tile % pieces) * BN + tl.arange(0, BN)
        k = (kh * KW + kw) * I + i
        known = i < I
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    first = tl.program_id(1) * part
    for start in range(first, min(first + part, M), BK):
        m = start + tl.arange(0, BK)
        image = m // (HO * WO)
        top = (m % (HO * WO)) // WO * STRIDE - PAD
        left = m % WO * STRIDE - PAD
        valid = m < min(first + part, M)
        a = tl.load(dy + m[None, :] * O + o[:, None], mask=valid[None, :] & (o < O)[:, None], other=0.0)
        if JOINT:
            h = top[:, None] + kh[None, :]
            v = left[:, None] + kw[None, :]
            inside = valid[:, None] & known[None, :] & (h >= 0) & (h < H) & (v >= 0) & (v < W)
            b = tl.load(x + ((image[:, None] * H + h) * W + v) * I + i[None, :], mask=inside, other=0.0)
        else:
            h = top + kh
            v = left + kw
            inside = valid & (h >= 0) & (h < H) & (v >= 0) & (v < W)
            rows = ((image * H + h) * W + v) * I
            b = tl.load(x + rows[:, None] + i[None, :], mask=inside[:, None] & known[None, :], other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    tl.store(dw + o[:, None] * depth + k[None, :], acc.to(dw.dtype.element_ty), mask=(o < O)[:, None] & known[None, :])


@triton.jit(do_not_specialize=("parts", "size"))
def _sum_parts(found, dw, parts, size, client, part, dw_client, BLOCK: tl.constexpr):
    """Sum the parts of each client's weights, in their order."""
    own = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found += own * client
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for _ in range(parts):
        total += tl.load(found + place, mask=place < size, other=0.0)
        found += part
    tl.store(dw + own * dw_client + place, total.to(dw.dtype.element_ty), mask=place < size)


def forward(x: Tensor, weight: Tensor, shape: ConvShape, precision: str, tile: Tile | None = None) -> Tensor:
    """y as `[C * B, O, HO, WO]`, channels last in memory."""
    g = Geometry(x.shape, weight, shape)
    y = _images(x, g.out, g.out_height, g.out_width)
    tile = tile or forward_tile(g, x.dtype)
    grid = (triton.cdiv(g.num_outputs, tile.rows) * triton.cdiv(g.out, tile.columns), g.clients)
    launch(
        _forward, grid, x, weight, y, *g.arguments(g.num_outputs, weight), outputs=(y,), STRIDE=g.stride, PAD=g.padding,
        JOINT=g.is_joint, PRECISION=precision, **settings(tile),
    )  # fmt: skip
    return y


def input_grad(
    dy: Tensor, x: Tensor, weight: Tensor, shape: ConvShape, precision: str, tile: Tile | None = None
) -> Tensor:
    """dx, shaped like x."""
    g = Geometry(x.shape, weight, shape)
    dx = _images(dy, g.depth, g.height, g.width)
    tile = tile or input_tile(g, dy.dtype)
    grid = (triton.cdiv(g.num_inputs, tile.rows) * triton.cdiv(g.depth, tile.columns), g.clients)
    launch(
        _input_grad, grid, dy, weight, dx, *g.arguments(g.num_inputs, weight), outputs=(dx,), STRIDE=g.stride,
        PAD=g.padding, PRECISION=precision, **settings(tile),
    )  # fmt: skip
    return dx


def weight_grad(
    dy: Tensor,
    x: Tensor,
    grad: Tensor,
    shape: ConvShape,
    precision: str,
    tile: Tile | None = None,
    programs: int = 264,
) -> None:
    """dw into `grad`, which is laid out like the weights; with few tiles, the sum is split into parts, then reduced.

    Taps that only ever see padding are not written: their gradients are zero already.
    """
    g = Geometry(x.shape, grad, shape)
    tile = tile or weight_tile(g, x.dtype)
    columns = tile.columns
    wide = triton.cdiv(g.kh * g.kw * g.depth, columns) if g.is_joint else g.taps[3] * triton.cdiv(g.depth, columns)
    tiles = triton.cdiv(g.out, tile.rows) * wide
    # About two programs per multiprocessor of a large GPU, but at least four loop steps each.
    parts = max(1, min(programs // (tiles * g.clients), g.num_outputs // (4 * tile.depth)))
    part = triton.cdiv(triton.cdiv(g.num_outputs, parts), tile.depth) * tile.depth
    parts = triton.cdiv(g.num_outputs, part)
    target, stride = grad, 0
    if parts > 1:
        empty = torch.empty if g.taps[3] == g.kh * g.kw else torch.zeros
        target = empty((parts, *grad.shape), device=grad.device, dtype=torch.float32)
        stride = target.stride(0)
    launch(
        _weight_grad, (tiles, parts, g.clients), x, dy, target,
        *g.arguments(g.num_outputs, target[0] if parts > 1 else grad), part, stride, outputs=(target,), STRIDE=g.stride,
        PAD=g.padding, JOINT=g.is_joint, PRECISION=precision, **settings(tile),
    )  # fmt: skip
    if parts > 1:
        size = target[0, 0].numel()
        launch(
            _sum_parts, (triton.cdiv(size, SUM_BLOCK), g.clients), target, grad, parts, size, target.stride(1), stride,
            grad.stride(0), outputs=(grad,), BLOCK=SUM_BLOCK,
        )  # fmt: skip


def _images(like: Tensor, channels: int, height: int, width: int) -> Tensor:
    return torch.empty(
        (len(like), channels, height, width),
        device=like.device,
        dtype=like.dtype,
        memory_format=torch.channels_last,
    )
