"""The geometric median of the uploads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlada.methods.combine.combiner import Combiner
from fedlada.methods.combine.gathered import by_column
from fedlada.methods.combine.order_statistics import middle_of
from fedlada.methods.state import Upload, map_tensors, named_tensors
from fedlada.methods.validation import count, positive

SMALLEST = 1e-100


@dataclass(frozen=True, kw_only=True)
class GeometricMedian(Combiner):
    """The point with the least weighted sum of distances to the uploads, for each vector (Pillutla et al. 2022).

    Found by Weiszfeld's iteration, which starts from the coordinate-wise median, since one client cannot move that far:
    w_i / max(||x_i - z||, `eps` m) are the weights of the next mean, where m is the median distance.
    """

    steps: int = 8
    eps: float = 1e-6

    def __post_init__(self) -> None:
        count("steps", self.steps)
        positive("eps", self.eps)

    def combine(self, uploads: Iterable[Upload], weights: Sequence[float] | None = None) -> Upload:
        every = list(uploads)
        if not every:
            raise ValueError("GeometricMedian needs at least one upload")
        start = by_column(every, middle_of)
        given = torch.tensor([1.0] * len(every) if weights is None else list(weights), dtype=torch.float64)
        columns = zip(*(dict(named_tensors(one)).values() for one in every), strict=True)
        found = [
            self._median(vectors, given.to(middle.device), middle)
            for vectors, (_, middle) in zip(columns, named_tensors(start), strict=True)
        ]
        order = iter(found)
        return map_tensors(lambda _: next(order), start)

    def _median(self, vectors: Sequence[Tensor], given: Tensor, middle: Tensor) -> Tensor:
        for _ in range(self.steps):
            distances = torch.stack([torch.linalg.vector_norm(one - middle, dtype=torch.float64) for one in vectors])
            # A distance of zero is that of an upload at z; all of them may be there.
            floor = (self.eps * distances.median()).clamp(min=SMALLEST)
            shares = given / torch.maximum(distances, floor)
            shares = shares / shares.sum()
            middle = sum((share * one for share, one in zip(shares, vectors, strict=True)), torch.zeros_like(middle))
        return middle
