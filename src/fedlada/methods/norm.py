"""The Euclidean norm of a vector, or of each row of stacked ones."""

from __future__ import annotations

import torch
from torch import Tensor

NORM_BLOCK = 1024


def norm(vector: Tensor) -> Tensor:
    """The norm along the last axis, which stays with length one; where blocks fit, that of the blocks' norms.

    A GPU computes many norms of short blocks faster than a few of long rows, and rounding errors are smaller.
    """
    if vector.shape[-1] > NORM_BLOCK and vector.shape[-1] % NORM_BLOCK == 0:
        vector = torch.linalg.vector_norm(vector.reshape(*vector.shape[:-1], -1, NORM_BLOCK), dim=-1)
    whole: Tensor = torch.linalg.vector_norm(vector, dim=-1, keepdim=True)
    return whole
