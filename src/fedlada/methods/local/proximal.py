"""FedProx's proximal term."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedlada.methods.local.transform import LocalTransform
from fedlada.methods.state import Step, Vectors
from fedlada.methods.validation import not_negative


@dataclass(frozen=True, kw_only=True)
class Proximal(LocalTransform):
    """update + mu * (x - x^t): the gradient of (mu / 2) ||x - x^t||^2 added."""

    elementwise: ClassVar[bool] = True

    mu: float = 0.1
    """Strength of the pull towards the broadcast model."""

    def __post_init__(self) -> None:
        not_negative("mu", self.mu)

    def apply(self, update: Tensor, local: Vectors, step: Step) -> tuple[Tensor, Vectors]:
        return update + self.mu * (step.params - step.anchor), local
