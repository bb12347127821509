"""The sizes of a convolution, and the tiling of its products for the GPU."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from fedlada.engines.stacked.kernels import ConvShape

SMALLEST_DEPTH = 16
"""With fewer input channels than this, taps and channels are gathered together as one depth."""


def supports(shape: ConvShape) -> bool:
    """Whether these kernels support the convolution: one group, no dilation, equal strides and paddings."""
    return (
        shape.groups == 1
        and shape.dilation == (1, 1)
        and shape.stride[0] == shape.stride[1]
        and shape.padding[0] == shape.padding[1]
    )


def fits(x: Tensor, weight: Tensor, shape: ConvShape) -> bool:
    """Whether these kernels support it, and count one client's numbers, in and out, with 32 bits."""
    height, width = (size + 2 * pad for size, pad in zip(x.shape[2:], shape.padding, strict=True))
    places = len(x) // len(weight) * height * width
    return supports(shape) and places * max(x.shape[1], weight.shape[1]) < 2**31


class Geometry:
    """The sizes of one convolution of C clients, as the kernels take them."""

    def __init__(self, x_shape: torch.Size, weight: Tensor, shape: ConvShape) -> None:
        self.clients, self.out, self.kh, self.kw, self.depth = weight.shape
        self.batch = x_shape[0] // self.clients
        self.height, self.width = x_shape[2:]
        self.stride, self.padding = shape.stride[0], shape.padding[0]
        self.out_height = (self.height + 2 * self.padding - self.kh) // self.stride + 1
        self.out_width = (self.width + 2 * self.padding - self.kw) // self.stride + 1
        rows = self._useful(self.kh, self.height, self.out_height)
        columns = self._useful(self.kw, self.width, self.out_width)
        self.taps = (rows[0], columns[0], len(columns), len(rows) * len(columns))
        self.is_joint = self.depth < SMALLEST_DEPTH

    def _useful(self, taps: int, size: int, out: int) -> range:
        """The kernel taps that overlap the image at some output position."""
        met = [
            tap
            for tap in range(taps)
            if any(0 <= place * self.stride + tap - self.padding < size for place in range(out))
        ]
        return range(met[0], met[-1] + 1)

    @property
    def num_outputs(self) -> int:
        """Output positions of one client."""
        return self.batch * self.out_height * self.out_width

    @property
    def num_inputs(self) -> int:
        """Input positions of one client."""
        return self.batch * self.height * self.width

    def arguments(self, places: int, weight: Tensor) -> tuple[int, ...]:
        """The arguments of every kernel after its pointers."""
        return (
            places, self.out, self.depth, self.height, self.width, self.out_height, self.out_width, self.kh, self.kw,
            *self.taps, self.num_inputs * self.depth, weight.stride(0), self.num_outputs * self.out,
        )  # fmt: skip


class Tile(NamedTuple):
    """The tiling of a product: rows and columns of a program's tile, depth of one loop step, and launch settings."""

    rows: int
    columns: int
    depth: int
    warps: int = 4
    stages: int = 3


def forward_tile(g: Geometry, dtype: torch.dtype) -> Tile:
    """The fastest of those measured on an H200 with ResNet-18's layers, as are the next two."""
    if g.is_joint:
        return Tile(64, 64, 32)
    return _fitted(Tile(128, 64, 64) if g.num_outputs >= 2048 else Tile(64, 64, 128), g.depth, dtype)


def input_tile(g: Geometry, dtype: torch.dtype) -> Tile:
    """For the gradient of the input."""
    if g.num_inputs >= 2048:
        return _fitted(Tile(128, 64, 64), g.out, dtype)
    return _fitted(Tile(64, 128 if g.num_inputs >= 128 else 64, 64), g.out, dtype)


def weight_tile(g: Geometry, dtype: torch.dtype) -> Tile:
    """For the gradient of the weights."""
    return _fitted(Tile(128 if g.out >= 128 and g.num_outputs >= 128 else 64, 64, 64), 64, dtype)


def _fitted(tile: Tile, depth: int, dtype: torch.dtype) -> Tile:
    """No deeper than the product, and half as deep for numbers twice as wide."""
    fitting = min(tile.depth, max(16, triton.next_power_of_2(depth)))
    return tile._replace(depth=max(16, fitting // 2) if dtype == torch.float32 else fitting)


def settings(tile: Tile) -> dict[str, int]:
    """A tile as a kernel's constants."""
    return {
        "BM": tile.rows,
        "BN": tile.columns,
        "BK": tile.depth,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }
