"""Clipping an update by its norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedlada.methods.local.transform import LocalTransform
from fedlada.methods.norm import norm
from fedlada.methods.state import Step, Vectors
from fedlada.methods.validation import positive


@dataclass(frozen=True, kw_only=True)
class ClipNorm(LocalTransform):
    """Scales an update down to Euclidean norm `max_norm` where its norm exceeds that."""

    elementwise: ClassVar[bool] = True
    ignores_zeros: ClassVar[bool] = True

    max_norm: float = 10.0

    def __post_init__(self) -> None:
        positive("max_norm", self.max_norm)

    def apply(self, update: Tensor, local: Vectors, step: Step) -> tuple[Tensor, Vectors]:
        # A norm of zero gives infinity here, which the clamp turns into a factor of one.
        return update * (self.max_norm / norm(update)).clamp(max=1), local
