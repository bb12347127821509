"""Krum: the one upload that is closest to its neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlada.methods.combine.combiner import Combiner
from fedlada.methods.combine.gathered import gathered
from fedlada.methods.state import Upload, named_tensors
from fedlada.methods.validation import count


@dataclass(frozen=True, kw_only=True)
class Krum(Combiner):
    """The upload with the least sum of squared distances to its n - `num_bad` - 2 nearest (Blanchard et al. 2017).

    All vectors come from the same client. Distances are sums over vectors, each divided by its median over all pairs,
    so that second moments count as much as the update.
    """

    weights_equally: ClassVar[bool] = True

    num_bad: int = 1
    """Malicious clients to withstand; a cohort needs 2 * num_bad + 3. If fewer answer, fewer are withstood."""

    def __post_init__(self) -> None:
        count("num_bad", self.num_bad)

    def check(self, cohort_size: int) -> None:
        if cohort_size < 2 * self.num_bad + 3:
            raise ValueError(
                f"Krum with num_bad={self.num_bad} needs {2 * self.num_bad + 3} clients a round, got {cohort_size}"
            )

    def combine(self, uploads: Iterable[Upload], weights: Sequence[float] | None = None) -> Upload:
        every = gathered(uploads, weights, "Krum")
        if len(every) < 3:
            return every[0]
        num_bad = min(self.num_bad, (len(every) - 3) // 2)
        distances = sum(map(_distances, zip(*(dict(named_tensors(one)).values() for one in every), strict=True)))
        assert isinstance(distances, Tensor)
        near = distances.sort(dim=1).values[:, 1 : len(every) - num_bad - 1]  # the nearest is the client itself
        return every[int(near.sum(dim=1).argmin())]


def _distances(vectors: Sequence[Tensor]) -> Tensor:
    """Squared distances `[C, C]` of one vector, in units of their median."""
    found = torch.zeros(len(vectors), len(vectors), dtype=torch.float64)
    for row, one in enumerate(vectors):
        for column in range(row):
            distance = float(torch.linalg.vector_norm(one - vectors[column], dtype=torch.float64)) ** 2
            found[row, column] = found[column, row] = distance
    pairs = found[torch.tril_indices(len(vectors), len(vectors), offset=-1).unbind()]
    middle = pairs.sort().values[len(pairs) // 2]
    return found / middle if middle > 0 else found
