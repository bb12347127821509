"""Adam on the server, as FedAdam (Reddi et al. 2021) defines it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlada.server.optimizer import ServerOptimizer
from fedlada.state import Vectors
from fedlada.validation import decay_of_old, positive


@dataclass(frozen=True, kw_only=True)
class Adam(ServerOptimizer):
    """M = b1 M + (1-b1) D;  V = b2 V + (1-b2) D*D;  x = x - eta_g M / (sqrt(V) + tau), without bias correction."""

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-2
    """The degree of adaptivity: the larger, the closer to momentum SGD."""

    def __post_init__(self) -> None:
        positive("server_lr", self.lr)
        decay_of_old("beta1", self.beta1)
        decay_of_old("beta2", self.beta2)
        positive("tau", self.tau)

    def init(self, params: Tensor) -> Vectors:
        return {"m": torch.zeros_like(params), "v": torch.zeros_like(params)}

    def step(self, params: Tensor, delta: Tensor, state: Vectors) -> tuple[Tensor, Vectors]:
        m = self.beta1 * state["m"] + (1 - self.beta1) * delta
        v = self.beta2 * state["v"] + (1 - self.beta2) * delta * delta
        return params - self.lr * m / (v.sqrt() + self.tau), {"m": m, "v": v}
