"""The Triton kernels; unsupported cases go to plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedlada.engines.stacked import triton_conv, triton_norm
from fedlada.engines.stacked.beside import Beside
from fedlada.engines.stacked.kernels import Affine, ConvShape, NormShape, TorchKernels
from fedlada.engines.stacked.triton_pool import MaxPool
from fedlada.engines.stacked.triton_tiles import fits


class TritonKernels:
    """Convolutions, GroupNorm and max-pooling in Triton; `precision` of float32 products: "tf32" or "ieee"."""

    def __init__(self, precision: str) -> None:
        self.precision = precision
        self.plain = TorchKernels()
        self.beside = Beside()

    def conv(self, x: Tensor, weight: Tensor, shape: ConvShape) -> Tensor:
        """Each client's images with its own weights."""
        if not fits(x, weight, shape):
            return self.plain.conv(x, weight, shape)
        return triton_conv.forward(x, weight, shape, self.precision)

    def conv_input_grad(self, dy: Tensor, x: Tensor, weight: Tensor, shape: ConvShape) -> Tensor:
        """The gradient of the images."""
        if not fits(x, weight, shape):
            return self.plain.conv_input_grad(dy, x, weight, shape)
        return triton_conv.input_grad(dy, x, weight, shape, self.precision)

    def conv_weight_grad(self, dy: Tensor, x: Tensor, grad: Tensor, shape: ConvShape) -> None:
        """The gradient of each client's weights, written into `grad`."""
        if not fits(x, grad, shape):
            self.plain.conv_weight_grad(dy, x, grad, shape)
        else:
            with self.beside(dy, x):
                triton_conv.weight_grad(dy, x, grad, shape, self.precision)

    def group_norm(
        self, x: Tensor, add: Tensor | None, affine: Affine, shape: NormShape
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """relu(norm(x) * weight + bias + add), and what its gradient needs."""
        return triton_norm.forward(_last(x), None if add is None else _last(add), affine, shape)

    def group_norm_grad(
        self, dy: Tensor, x: Tensor, y: Tensor, saved: Sequence[Tensor], affine: Affine, shape: NormShape
    ) -> tuple[Tensor, Tensor | None]:
        """The gradients of x and of the shortcut; those of scale and shift are written into their buffers."""
        dx, dadd, parts = triton_norm.backward(_last(dy), _last(x), y, saved, affine, shape)
        with self.beside(parts):
            triton_norm.sum_samples(parts, affine)
        return dx, dadd

    def finish(self) -> None:
        """Wait until all gradients are written."""
        self.beside.join()

    def max_pool(self, pool: nn.MaxPool2d) -> nn.Module | None:
        """The same by a kernel, if there is one for its settings."""
        return MaxPool.of(pool)


def _last(x: Tensor) -> Tensor:
    """Channels last in memory, for any number of axes."""
    if x.ndim == 4:
        return x.contiguous(memory_format=torch.channels_last)
    return x.movedim(1, -1).contiguous().movedim(-1, 1)
