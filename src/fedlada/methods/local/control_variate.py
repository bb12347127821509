"""SCAFFOLD's control variates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedlada.methods.local.transform import LocalTransform
from fedlada.methods.state import ClientRound, Round, Step, Vectors
from fedlada.methods.validation import not_negative


@dataclass(frozen=True, kw_only=True)
class ControlVariate(LocalTransform):
    """update + correction * (c - c_i), where c_i is the client's mean step of its last round and c their mean."""

    elementwise: ClassVar[bool] = True

    correction: float = 1.0
    """Weight of the correction (1 in SCAFFOLD; the paper scales it in one of its tables)."""

    def __post_init__(self) -> None:
        not_negative("correction", self.correction)

    def init_shared(self, params: Tensor) -> Vectors:
        return {"control": torch.zeros_like(params)}

    def init_kept(self, params: Tensor) -> Vectors:
        return {"control": torch.zeros_like(params)}

    def begin(self, shared: Vectors, kept: Vectors, like: Tensor) -> Vectors:
        return {"shift": shared["control"] - kept["control"]}  # the same in all steps: read as one vector

    def apply(self, update: Tensor, local: Vectors, step: Step) -> tuple[Tensor, Vectors]:
        return update + self.correction * local["shift"], local

    def finish(self, local: Vectors, done: ClientRound, step: Step) -> tuple[Vectors, Vectors]:
        own = step.kept["control"]
        mean_step = done.delta / (done.num_steps * done.lr)
        # Subtracting the scaled correction leaves the mean raw gradient; the usual formula would let the scale cancel.
        control = mean_step - self.correction * local["shift"]
        return {"control_change": control - own}, {"control": control}

    def merge(self, shared: Vectors, mean: Vectors, round: Round) -> Vectors:
        return {"control": shared["control"] + round.participation * mean["control_change"]}
