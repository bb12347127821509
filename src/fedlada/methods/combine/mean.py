"""The weighted mean of the uploads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from fedlada.methods.combine.combiner import Combiner
from fedlada.methods.state import Upload, map_tensors, named_tensors


@dataclass(frozen=True, kw_only=True)
class Mean(Combiner):
    """The mean, accumulated one upload at a time, as in the paper and its baselines."""

    is_linear: ClassVar[bool] = True
    streams: ClassVar[bool] = True

    def combine(self, uploads: Iterable[Upload], weights: Sequence[float] | None = None) -> Upload:
        return average(uploads, weights)


def average(uploads: Iterable[Upload], weights: Sequence[float] | None = None) -> Upload:
    """The mean of the uploads, accumulated in the given order; they may come from a generator.

    Without weights each counts 1/S, as in the paper. The order is part of the result: floating-point sums depend
    on it, so engines always give the uploads in the order of the clients' numbers.

    A training loop calls `method.combine(uploads)`: some methods, such as FedExP and FedNova, take no plain mean.
    """
    total: Upload | None = None
    total_weight = 0.0
    index = -1
    for index, upload in enumerate(uploads):
        if weights is not None and index >= len(weights):
            raise ValueError(f"there are more uploads than the {len(weights)} weights")
        weight = 1.0 if weights is None else float(weights[index])
        if not 0 <= weight < math.inf:
            raise ValueError(f"weights must be finite and not negative, got {weight}")
        total_weight += weight
        if total is None:
            total = map_tensors(partial(torch.mul, other=weight), upload)
            continue
        for (_, sum_so_far), (_, tensor) in zip(named_tensors(total), named_tensors(upload), strict=True):
            sum_so_far.add_(tensor, alpha=weight)
    if weights is not None and len(weights) != index + 1:
        raise ValueError(f"there are {len(weights)} weights for {index + 1} uploads")
    if total is None or total_weight == 0:
        raise ValueError("the mean needs at least one upload with a positive weight")
    return map_tensors(lambda tensor: tensor / total_weight, total)
