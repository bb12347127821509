"""Convolution and GroupNorm of many clients, in plain torch: any device, any precision.

Activations of all clients lie in one batch `[C * B, ...]`, client after client, channels last in memory; weights are
`[C, out, height, width, in]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class ConvShape:
    """The settings of a convolution, besides its weights."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int


@dataclass(frozen=True)
class NormShape:
    """The settings of a GroupNorm, besides its parameters."""

    groups: int
    eps: float
    adds: bool
    """Whether a shortcut is added."""
    relu: bool


class Affine(NamedTuple):
    """Each client's scale and shift `[C, channels]`, and where their gradients go."""

    weight: Tensor
    bias: Tensor
    weight_grad: Tensor
    bias_grad: Tensor


class Kernels(Protocol):
    """The operations that have kernels of their own."""

    def conv(self, x: Tensor, weight: Tensor, shape: ConvShape) -> Tensor:
        """Each client's images with its own weights."""

    def conv_input_grad(self, dy: Tensor, x: Tensor, weight: Tensor, shape: ConvShape) -> Tensor:
        """The gradient of the images."""

    def conv_weight_grad(self, dy: Tensor, x: Tensor, grad: Tensor, shape: ConvShape) -> None:
        """The gradient of each client's weights, written into `grad`; zeros that stay zeros need not be written."""

    def group_norm(
        self, x: Tensor, add: Tensor | None, affine: Affine, shape: NormShape
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """relu(norm(x) * weight + bias + add), and what its gradient needs."""

    def group_norm_grad(
        self, dy: Tensor, x: Tensor, y: Tensor, saved: Sequence[Tensor], affine: Affine, shape: NormShape
    ) -> tuple[Tensor, Tensor | None]:
        """The gradients of x and of the shortcut; those of scale and shift are written into their buffers."""

    def max_pool(self, pool: nn.MaxPool2d) -> nn.Module | None:
        """The same by a kernel, if there is one for its settings."""

    def finish(self) -> None:
        """Wait until all gradients of parameters are written; before it they may be incomplete."""


class TorchKernels:
    """The plain form: grouped convolutions, torch's own normalisation."""

    def conv(self, x: Tensor, weight: Tensor, shape: ConvShape) -> Tensor:
        out = F.conv2d(
            _beside(x, len(weight)),
            _grouped(weight),
            None,
            shape.stride,
            shape.padding,
            shape.dilation,
            shape.groups * len(weight),
        )
        y = _behind(out, len(weight))
        return y.clone() if y._is_view() else y

    def conv_input_grad(self, dy: Tensor, x: Tensor, weight: Tensor, shape: ConvShape) -> Tensor:
        dx, _ = self._conv_grads(dy, x, weight, shape, (True, False))
        assert dx is not None
        return _behind(dx, len(weight))

    def conv_weight_grad(self, dy: Tensor, x: Tensor, grad: Tensor, shape: ConvShape) -> None:
        _, dw = self._conv_grads(dy, x, grad, shape, (False, True))
        assert dw is not None
        grad.copy_(dw.view(*grad.shape[:2], *dw.shape[1:]).movedim(2, -1))

    def _conv_grads(
        self, dy: Tensor, x: Tensor, weight: Tensor, shape: ConvShape, wanted: tuple[bool, bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        clients = len(weight)
        dx, dw, _ = torch.ops.aten.convolution_backward(
            _beside(dy, clients), _beside(x, clients), _grouped(weight), None, shape.stride, shape.padding,
            shape.dilation, False, (0, 0), shape.groups * clients, (*wanted, False),
        )  # fmt: skip
        return dx, dw

    def group_norm(
        self, x: Tensor, add: Tensor | None, affine: Affine, shape: NormShape
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        samples, channels = x.shape[:2]
        normed, mean, rstd = torch.native_group_norm(
            x.contiguous(), None, None, samples, channels, x[0, 0].numel(), shape.groups, shape.eps
        )
        y = normed * _per_sample(affine.weight, x) + _per_sample(affine.bias, x)
        if add is not None:
            y = y + add
        return (F.relu(y) if shape.relu else y), (normed, mean, rstd)

    def group_norm_grad(
        self, dy: Tensor, x: Tensor, y: Tensor, saved: Sequence[Tensor], affine: Affine, shape: NormShape
    ) -> tuple[Tensor, Tensor | None]:
        normed, mean, rstd = saved
        if shape.relu:
            dy = torch.where(y > 0, dy, torch.zeros_like(dy))
        clients = len(affine.weight)
        affine.weight_grad.copy_(_per_client(dy * normed, clients))
        affine.bias_grad.copy_(_per_client(dy, clients))
        samples, channels = x.shape[:2]
        dx, _, _ = torch.ops.aten.native_group_norm_backward(
            (dy * _per_sample(affine.weight, x)).contiguous(), x.contiguous(), mean, rstd, None, samples, channels,
            x[0, 0].numel(), shape.groups, (True, False, False),
        )  # fmt: skip
        return dx, (dy if shape.adds else None)

    def max_pool(self, pool: nn.MaxPool2d) -> nn.Module | None:
        return None

    def finish(self) -> None:
        return None


def by_client(x: Tensor, clients: int) -> Tensor:
    """`[C * B, ...]` as `[C, B, ...]`."""
    return x.reshape(clients, len(x) // clients, *x.shape[1:])


def _beside(x: Tensor, clients: int) -> Tensor:
    """`[C * B, I, H, W]` as `[B, C * I, H, W]`: the clients' channels side by side."""
    return by_client(x, clients).transpose(0, 1).flatten(1, 2)


def _behind(x: Tensor, clients: int) -> Tensor:
    """The inverse: `[B, C * I, H, W]` as `[C * B, I, H, W]`."""
    return x.reshape(len(x), clients, -1, *x.shape[2:]).transpose(0, 1).flatten(0, 1)


def _grouped(weight: Tensor) -> Tensor:
    return weight.movedim(-1, 2).flatten(0, 1)


def _per_sample(values: Tensor, x: Tensor) -> Tensor:
    """Each client's channels `[C, Ch]`, for each of its samples, against `[C * B, Ch, ...]`."""
    each = values.repeat_interleave(len(x) // len(values), dim=0)
    return each.view(*each.shape, *([1] * (x.ndim - 2)))


def _per_client(x: Tensor, clients: int) -> Tensor:
    """The sum over each client's samples and positions: `[C, Ch]`."""
    return by_client(x, clients).transpose(1, 2).flatten(2).sum(dim=2)
