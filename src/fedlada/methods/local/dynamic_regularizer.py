"""FedDyn's dynamic regularizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlada.methods.local.transform import LocalTransform
from fedlada.methods.state import ClientRound, Step, Vectors
from fedlada.methods.validation import not_negative


@dataclass(frozen=True, kw_only=True)
class DynamicRegularizer(LocalTransform):
    """update + mu * (x - x^t + h_i), h_i minus the sum of the client's deltas; its server is `Dynamic`."""

    elementwise: ClassVar[bool] = True
    paired: ClassVar[frozenset[str]] = frozenset({"h"})

    mu: float = 0.1
    """Strength of the regularizer."""
    with_params: bool = True
    """If false, mu x is left out, for a `WeightDecay` of strength mu after the clipping."""

    def __post_init__(self) -> None:
        not_negative("mu", self.mu)

    def init_kept(self, params: Tensor) -> Vectors:
        return {"h": torch.zeros_like(params)}

    def begin(self, shared: Vectors, kept: Vectors, like: Tensor) -> Vectors:
        return {"pull": kept["h"] - like}  # the same in all steps: read as one vector

    def apply(self, update: Tensor, local: Vectors, step: Step) -> tuple[Tensor, Vectors]:
        if not self.with_params:
            return update + self.mu * local["pull"], local
        return update + self.mu * (step.params + local["pull"]), local

    def finish(self, local: Vectors, done: ClientRound, step: Step) -> tuple[Vectors, Vectors]:
        return {}, {"h": step.kept["h"] - done.delta}
