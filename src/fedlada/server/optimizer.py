"""What the server does with the mean of the clients' deltas."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from fedlada.state import Vectors


class ServerOptimizer(ABC):
    """One server step; the mean delta takes the place of a gradient. Subclasses are frozen dataclasses."""

    def init(self, params: Tensor) -> Vectors:
        """The optimizer's state before the first round."""
        return {}

    @abstractmethod
    def step(self, params: Tensor, delta: Tensor, state: Vectors) -> tuple[Tensor, Vectors]:
        """x^{t+1} and the new state, from x^t and the mean delta (which is subtracted)."""
