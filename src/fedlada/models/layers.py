"""Layers that an engine can fuse into one kernel."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class GroupNorm(nn.GroupNorm):
    """GroupNorm that can also add a shortcut and apply ReLU: on a GPU the stacked engine fuses the three.

    Parameters and their names are those of `nn.GroupNorm`.
    """

    def forward(self, x: Tensor, add: Tensor | None = None, relu: bool = False) -> Tensor:
        """relu(norm(x) + add), both optional."""
        y = super().forward(x)
        if add is not None:
            y = y + add
        return F.relu(y) if relu else y
