"""Server optimizers: the server's step from the combined delta of a cohort."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlada.methods.state import Round, Vectors
from fedlada.methods.validation import decay_of_old, positive

__all__ = ["SGD", "Adagrad", "Adam", "Dynamic", "Momentum", "ServerOptimizer", "Yogi"]


class ServerOptimizer(ABC):
    """One server step; the cohort's delta takes the place of a gradient. Subclasses are frozen dataclasses."""

    def init(self, params: Tensor) -> Vectors:
        """The optimizer's state before the first round."""
        return {}

    @abstractmethod
    def step(self, params: Tensor, delta: Tensor, state: Vectors, round: Round) -> tuple[Tensor, Vectors]:
        """x^{t+1} and the new state, from x^t and the cohort's delta, which is subtracted.

        `round` has the clients' rate and number of steps and the active share of all clients.
        """

    def other_models(self, params: Tensor, state: Vectors) -> Vectors:
        """Models besides `params` to evaluate, by name: the loss of the one called `mean` is `test_loss_of_mean`."""
        return {}


@dataclass(frozen=True, kw_only=True)
class SGD(ServerOptimizer):
    """x^{t+1} = x^t - eta_g D; with eta_g = 1 the new model is the mean of the clients' models."""

    lr: float = 1.0

    def __post_init__(self) -> None:
        positive("server_lr", self.lr)

    def step(self, params: Tensor, delta: Tensor, state: Vectors, round: Round) -> tuple[Tensor, Vectors]:
        return params - self.lr * delta, state


@dataclass(frozen=True, kw_only=True)
class Momentum(ServerOptimizer):
    """M = momentum M + D;  x = x - eta_g M."""

    lr: float = 1.0
    momentum: float = 0.9

    def __post_init__(self) -> None:
        positive("server_lr", self.lr)
        decay_of_old("momentum", self.momentum)

    def init(self, params: Tensor) -> Vectors:
        return {"m": torch.zeros_like(params)}

    def step(self, params: Tensor, delta: Tensor, state: Vectors, round: Round) -> tuple[Tensor, Vectors]:
        m = self.momentum * state["m"] + delta
        return params - self.lr * m, {"m": m}


@dataclass(frozen=True, kw_only=True)
class Adagrad(ServerOptimizer):
    """V = V + D*D;  x = x - eta_g D / (sqrt(V) + tau)."""

    lr: float = 0.1
    tau: float = 1e-2

    def __post_init__(self) -> None:
        positive("server_lr", self.lr)
        positive("tau", self.tau)

    def init(self, params: Tensor) -> Vectors:
        return {"v": torch.zeros_like(params)}

    def step(self, params: Tensor, delta: Tensor, state: Vectors, round: Round) -> tuple[Tensor, Vectors]:
        v = state["v"] + delta * delta
        return params - self.lr * delta / (v.sqrt() + self.tau), {"v": v}


@dataclass(frozen=True, kw_only=True)
class Adam(ServerOptimizer):
    """M = b1 M + (1-b1) D;  V = b2 V + (1-b2) D*D;  x = x - eta_g M / (sqrt(V) + tau), without bias correction.

    FedAdam's (Reddi et al. 2021).
    """

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

    def step(self, params: Tensor, delta: Tensor, state: Vectors, round: Round) -> tuple[Tensor, Vectors]:
        m = self.beta1 * state["m"] + (1 - self.beta1) * delta
        v = self.beta2 * state["v"] + (1 - self.beta2) * delta * delta
        return params - self.lr * m / (v.sqrt() + self.tau), {"m": m, "v": v}


@dataclass(frozen=True, kw_only=True)
class Yogi(ServerOptimizer):
    """M = b1 M + (1-b1) D;  V = V - (1-b2) D*D sign(V - D*D);  x = x - eta_g M / (sqrt(V) + tau)."""

    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-2

    def __post_init__(self) -> None:
        positive("server_lr", self.lr)
        decay_of_old("beta1", self.beta1)
        decay_of_old("beta2", self.beta2)
        positive("tau", self.tau)

    def init(self, params: Tensor) -> Vectors:
        return {"m": torch.zeros_like(params), "v": torch.zeros_like(params)}

    def step(self, params: Tensor, delta: Tensor, state: Vectors, round: Round) -> tuple[Tensor, Vectors]:
        square = delta * delta
        m = self.beta1 * state["m"] + (1 - self.beta1) * delta
        v = state["v"] - (1 - self.beta2) * square * torch.sign(state["v"] - square)
        return params - self.lr * m / (v.sqrt() + self.tau), {"m": m, "v": v}


@dataclass(frozen=True, kw_only=True)
class Dynamic(ServerOptimizer):
    """H = H - p D;  x = x - D + H: FedDyn's server, where H is the mean of all clients' h_i and never sent."""

    def init(self, params: Tensor) -> Vectors:
        return {"h": torch.zeros_like(params)}

    def step(self, params: Tensor, delta: Tensor, state: Vectors, round: Round) -> tuple[Tensor, Vectors]:
        h = state["h"] - round.participation * delta
        return params - delta + h, {"h": h}

    def other_models(self, params: Tensor, state: Vectors) -> Vectors:
        """The mean of the active clients' models, x^t - D, which FedDyn's authors evaluate."""
        return {"mean": params - state["h"]}
