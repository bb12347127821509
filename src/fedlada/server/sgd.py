"""Plain averaging, with a rate."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedlada.server.optimizer import ServerOptimizer
from fedlada.state import Vectors
from fedlada.validation import positive


@dataclass(frozen=True, kw_only=True)
class SGD(ServerOptimizer):
    """x^{t+1} = x^t - eta_g D; with eta_g = 1 the new model is the mean of the clients' models."""

    lr: float = 1.0

    def __post_init__(self) -> None:
        positive("server_lr", self.lr)

    def step(self, params: Tensor, delta: Tensor, state: Vectors) -> tuple[Tensor, Vectors]:
        return params - self.lr * delta, state
