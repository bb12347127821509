"""A multilayer perceptron."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def mlp(
    num_classes: int = 10, *, input_shape: Sequence[int] = (1, 8, 8), hidden: Sequence[int] = (64,)
) -> nn.Sequential:
    """Flattened input, then ReLU layers of the given widths."""
    widths = [math.prod(input_shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))
