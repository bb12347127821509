"""FedLESAM's perturbation, known before the batch is seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlada.methods.local.sharpness_aware import of_length
from fedlada.methods.local.transform import LocalTransform
from fedlada.methods.state import GradientAt, Round, Step, Vectors
from fedlada.methods.validation import not_negative


@dataclass(frozen=True, kw_only=True)
class UphillGlobally(LocalTransform):
    """Takes the gradient at x + rho D / ||D||, with D the cohort's last mean delta: no second gradient."""

    elementwise: ClassVar[bool] = True
    ignores_zeros: ClassVar[bool] = True

    rho: float = 0.1
    """Radius of the perturbation."""

    def __post_init__(self) -> None:
        not_negative("rho", self.rho)

    def init_shared(self, params: Tensor) -> Vectors:
        return {"perturbation": torch.zeros_like(params)}

    def look(self, point: Tensor, local: Vectors, step: Step, gradient_at: GradientAt) -> tuple[Tensor, Vectors]:
        return point + step.shared["perturbation"], local

    def merge(self, shared: Vectors, mean: Vectors, round: Round) -> Vectors:
        return {"perturbation": of_length(self.rho, round.delta)}  # once a round, not in every step
