"""Sharpness-aware minimization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedlada.methods.local.transform import LocalTransform
from fedlada.methods.norm import norm
from fedlada.methods.state import GradientAt, Step, Vectors
from fedlada.methods.validation import not_negative


@dataclass(frozen=True, kw_only=True)
class SharpnessAware(LocalTransform):
    """Takes the gradient at x + rho g(x) / ||g(x)||, on the same batch: a second gradient per step."""

    elementwise: ClassVar[bool] = True
    ignores_zeros: ClassVar[bool] = True

    rho: float = 0.1
    """Radius of the perturbation."""

    def __post_init__(self) -> None:
        not_negative("rho", self.rho)

    def look(self, point: Tensor, local: Vectors, step: Step, gradient_at: GradientAt) -> tuple[Tensor, Vectors]:
        return point + of_length(self.rho, gradient_at(point)), local


def of_length(length: float, vector: Tensor) -> Tensor:
    """The vector scaled to a length; a vector of zeros stays one."""
    return vector * (length / (norm(vector) + 1e-7))
