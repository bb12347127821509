"""A small convolutional net with GroupNorm, for small images."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from fedlada.models.image_shape import image_shape


def cnn_gn(
    num_classes: int = 10, *, input_shape: Sequence[int] = (1, 8, 8), widths: Sequence[int] = (16, 32)
) -> nn.Sequential:
    """3x3 convolutions with GroupNorm and ReLU, all but the first with stride 2; then one linear layer."""
    channels, height, width = image_shape("cnn_gn", input_shape)
    layers: list[nn.Module] = []
    for index, out in enumerate(widths):
        stride = 1 if index == 0 else 2
        layers += [nn.Conv2d(channels, out, 3, stride=stride, padding=1), nn.GroupNorm(2, out), nn.ReLU()]
        channels, height, width = out, math.ceil(height / stride), math.ceil(width / stride)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, num_classes))
