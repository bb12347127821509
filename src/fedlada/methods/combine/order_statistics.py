"""Coordinate-wise order statistics: trimmed mean and median."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedlada.methods.combine.combiner import Combiner
from fedlada.methods.combine.gathered import by_column, gathered
from fedlada.methods.state import Upload
from fedlada.methods.validation import finite


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(Combiner):
    """The coordinate-wise mean without the largest and smallest values (Yin et al. 2018)."""

    weights_equally: ClassVar[bool] = True

    share: float = 0.1
    """Share of the clients trimmed at each end; rounded down, but at least one client if there are three."""

    def __post_init__(self) -> None:
        finite("share", self.share)
        if not 0 <= self.share < 0.5:
            raise ValueError(f"share must be in [0, 0.5), got {self.share}")

    def combine(self, uploads: Iterable[Upload], weights: Sequence[float] | None = None) -> Upload:
        every = gathered(uploads, weights, "TrimmedMean")
        cut = min(max(int(self.share * len(every)), self.share > 0), (len(every) - 1) // 2)

        def trimmed(values: Tensor) -> Tensor:
            return values.sort(dim=0).values[cut : len(values) - cut].mean(dim=0)

        return by_column(every, trimmed)


@dataclass(frozen=True, kw_only=True)
class Median(Combiner):
    """The coordinate-wise median; with an even number of clients, the mean of the middle two."""

    weights_equally: ClassVar[bool] = True

    def combine(self, uploads: Iterable[Upload], weights: Sequence[float] | None = None) -> Upload:
        return by_column(gathered(uploads, weights, "Median"), middle_of)


def middle_of(values: Tensor) -> Tensor:
    """The median of each column of `[C, N]`."""
    ordered, middle = values.sort(dim=0).values, len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
