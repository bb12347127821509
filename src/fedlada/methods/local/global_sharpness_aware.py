"""FedSMOO's perturbation, aligned across clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlada.methods.local.sharpness_aware import of_length
from fedlada.methods.local.transform import LocalTransform
from fedlada.methods.state import ClientRound, GradientAt, Round, Step, Vectors
from fedlada.methods.validation import not_negative


@dataclass(frozen=True, kw_only=True)
class GlobalSharpnessAware(LocalTransform):
    """Takes the gradient at x + e with e = rho q / ||q|| and q = g(x) - u_i - s: a second gradient a step.

    u_i, the client's dual variable, accumulates e - s over all its steps. s points along the cohort's mean of u_i and
    has length rho. The paper also subtracts the last perturbation in s; the authors' simulator does not, nor does this.
    """

    elementwise: ClassVar[bool] = True
    ignores_zeros: ClassVar[bool] = True

    rho: float = 0.1
    """Radius of the perturbation."""

    def __post_init__(self) -> None:
        not_negative("rho", self.rho)

    def init_shared(self, params: Tensor) -> Vectors:
        return {"perturbation": torch.zeros_like(params)}

    def init_kept(self, params: Tensor) -> Vectors:
        return {"dual": torch.zeros_like(params)}

    def begin(self, shared: Vectors, kept: Vectors, like: Tensor) -> Vectors:
        return {"dual": kept["dual"]}

    def look(self, point: Tensor, local: Vectors, step: Step, gradient_at: GradientAt) -> tuple[Tensor, Vectors]:
        agreed = step.shared["perturbation"]
        uphill = of_length(self.rho, gradient_at(point) - local["dual"] - agreed)
        return point + uphill, {"dual": local["dual"] + uphill - agreed}

    def finish(self, local: Vectors, done: ClientRound, step: Step) -> tuple[Vectors, Vectors]:
        return {"dual": local["dual"]}, {"dual": local["dual"]}

    def merge(self, shared: Vectors, mean: Vectors, round: Round) -> Vectors:
        return {"perturbation": of_length(self.rho, mean["dual"])}
