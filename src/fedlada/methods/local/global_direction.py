"""The amendment: pull each local step towards the direction of the last global update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlada.methods.local.transform import LocalTransform
from fedlada.methods.state import Round, Step, Vectors
from fedlada.methods.validation import weight_of_new


@dataclass(frozen=True, kw_only=True)
class TowardGlobalDirection(LocalTransform):
    """alpha * update + (1 - alpha) * g_a, with g_a the cohort's last mean step per local step and unit of rate.

    After AMSGrad this is FedLADA's amendment; on the raw gradient it is FedCM's client momentum.
    """

    elementwise: ClassVar[bool] = True

    alpha: float = 0.1
    """Weight of the client's own update."""

    def __post_init__(self) -> None:
        weight_of_new("alpha", self.alpha)

    def init_shared(self, params: Tensor) -> Vectors:
        return {"direction": torch.zeros_like(params)}

    def apply(self, update: Tensor, local: Vectors, step: Step) -> tuple[Tensor, Vectors]:
        return self.alpha * update + (1 - self.alpha) * step.shared["direction"], local

    def merge(self, shared: Vectors, mean: Vectors, round: Round) -> Vectors:
        # g_a^{t+1} = D / (eta_l K), free of eta_g, so that it means the same under every server optimizer.
        return {"direction": round.delta / (round.lr * round.num_steps)}
