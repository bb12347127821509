"""Convolutions of many clients: in one or two dimensions, grouped, depthwise, transposed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedlada.engines.stacked.bank import Bank, StackedLayer, Use
from fedlada.engines.stacked.kernels import ConvShape, by_client

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d)
"""Layers whose weight lies channels-last."""


def _is_plain(conv: Any) -> bool:
    return conv.padding_mode == "zeros" and not isinstance(conv.padding, str)


def _shape(conv: Any) -> ConvShape:
    """A 1-d input as an image of height one."""
    height = {"stride": 1, "padding": 0, "dilation": 1}
    sizes = {name: tuple(getattr(conv, name)) for name in height}
    whole = {name: size if len(size) == 2 else (height[name], *size) for name, size in sizes.items()}
    return ConvShape(**whole, groups=conv.groups)


def _images(x: Tensor) -> Tensor:
    return (x if x.ndim == 4 else x.unsqueeze(2)).contiguous(memory_format=torch.channels_last)


def _kernel(weight: Tensor) -> Tensor:
    """Weights `[C, out, height, width, in]`."""
    return weight if weight.ndim == 5 else weight.unsqueeze(2)


def _like(y: Tensor, x: Tensor) -> Tensor:
    """1-d again, if the input was; not a view, so that the next layer may change it in place (ReLU often does)."""
    y = y.clone() if y._is_view() else y
    shape = (*y.shape[:2], *y.shape[4 - x.ndim + 2 :])
    return y if x.ndim == 4 else torch.ops.aten._unsafe_view(y, shape)


def _with_bias(y: Tensor, bias: Tensor | None) -> Tensor:
    return y if bias is None else y + bias.repeat_interleave(len(y) // len(bias), dim=0)[:, :, None, None]


class StackedConv(StackedLayer):
    """A convolution of each client's images with its own weights."""

    def __init__(self, bank: Bank, names: dict[str, str], conv: nn.Conv1d | nn.Conv2d) -> None:
        super().__init__(bank, names)
        self.shape = _shape(conv)

    supports = staticmethod(_is_plain)

    def run(self, x: Tensor, add: Tensor | None, use: Use) -> tuple[Tensor, tuple[Tensor, ...]]:
        images = _images(x)
        y = self.bank.kernels.conv(images, _kernel(self.rows()), self.shape)
        return _like(_with_bias(y, self.rows_of_bias()), x), (images,)

    def run_back(
        self, dy: Tensor, saved: tuple[Tensor, ...], use: Use, need_input: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        (x,) = saved
        weight, lines = _kernel(self.rows()), dy.ndim == 3
        dy = _images(dy)
        if "bias" in self.names:
            self.write("bias", by_client(dy, len(weight)).sum(dim=(1, 3, 4)))
        with self.grad(size=x.shape[2:]) as grad:
            self.bank.kernels.conv_weight_grad(dy, x, _kernel(grad), self.shape)
        if not need_input:
            return None, None
        dx = self.bank.kernels.conv_input_grad(dy, x, weight, self.shape)
        return dx.squeeze(2) if lines else dx, None


class StackedConvTranspose(StackedLayer):
    """A transposed convolution: its forward pass is the backward pass of a convolution, and vice versa."""

    def __init__(self, bank: Bank, names: dict[str, str], conv: nn.ConvTranspose1d | nn.ConvTranspose2d) -> None:
        super().__init__(bank, names)
        self.shape = _shape(conv)
        self.out_channels = conv.out_channels
        self.kernel_size = (1, 1, *conv.kernel_size)[-2:]
        self.output_padding = (0, 0, *conv.output_padding)[-2:]

    supports = staticmethod(_is_plain)

    def run(self, x: Tensor, add: Tensor | None, use: Use) -> tuple[Tensor, tuple[Tensor, ...]]:
        images, shape = _images(x), self.shape
        ways = zip(
            images.shape[2:], shape.stride, shape.padding, shape.dilation, self.kernel_size, self.output_padding,
            strict=True,
        )  # fmt: skip
        size = [(n - 1) * stride - 2 * pad + dil * (k - 1) + more + 1 for n, stride, pad, dil, k, more in ways]
        like = images.new_empty((len(x), self.out_channels, *size)).contiguous(memory_format=torch.channels_last)
        y = self.bank.kernels.conv_input_grad(images, like, _kernel(self.rows()), shape)
        return _like(_with_bias(y, self.rows_of_bias()), x), (images,)

    def run_back(
        self, dy: Tensor, saved: tuple[Tensor, ...], use: Use, need_input: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        (x,) = saved
        weight, lines = _kernel(self.rows()), dy.ndim == 3
        dy = _images(dy)
        if "bias" in self.names:
            self.write("bias", by_client(dy, len(weight)).sum(dim=(1, 3, 4)))
        with self.grad(size=x.shape[2:]) as grad:
            self.bank.kernels.conv_weight_grad(x, dy, _kernel(grad), self.shape)
        if not need_input:
            return None, None
        dx = self.bank.kernels.conv(dy, weight, self.shape)
        return dx.squeeze(2) if lines else dx, None
