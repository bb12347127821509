"""FedExP's extrapolated mean: a longer step where clients disagree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from fedlada.methods.combine.combiner import Combiner
from fedlada.methods.combine.mean import average
from fedlada.methods.state import Upload
from fedlada.methods.validation import positive


@dataclass(frozen=True, kw_only=True)
class Extrapolated(Combiner):
    """max(1, mean ||delta_i||^2 / (2 (||D||^2 + eps))) times the mean delta D; the other vectors are means."""

    streams: ClassVar[bool] = True

    eps: float = 1e-3

    def __post_init__(self) -> None:
        positive("eps", self.eps)

    def combine(self, uploads: Iterable[Upload], weights: Sequence[float] | None = None) -> Upload:
        squares: list[Tensor] = []

        def measured() -> Iterator[Upload]:
            for upload in uploads:
                squares.append(upload.delta.square().sum())
                yield upload

        mean = average(measured(), weights)
        shares = [1.0] * len(squares) if weights is None else list(weights)
        spread = sum(share * square for share, square in zip(shares, squares, strict=True)) / sum(shares)
        scale = (spread / (2 * (mean.delta.square().sum() + self.eps))).clamp(min=1)
        return replace(mean, delta=scale * mean.delta)
