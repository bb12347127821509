"""Weight decay, L2 or decoupled by its place in the chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedlada.methods.local.transform import LocalTransform
from fedlada.methods.state import Step, Vectors
from fedlada.methods.validation import not_negative


@dataclass(frozen=True, kw_only=True)
class WeightDecay(LocalTransform):
    """update + strength * x: L2 before an adaptive optimizer, decoupled decay (AdamW) after it."""

    elementwise: ClassVar[bool] = True

    strength: float = 1e-3

    def __post_init__(self) -> None:
        not_negative("weight_decay", self.strength)

    def apply(self, update: Tensor, local: Vectors, step: Step) -> tuple[Tensor, Vectors]:
        return update + self.strength * step.params, local
