"""The number of local steps, as a number that each client sends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedlada.methods.local.transform import LocalTransform
from fedlada.methods.state import ClientRound, Step, Vectors


@dataclass(frozen=True, kw_only=True)
class StepCount(LocalTransform):
    """Sends K_i beside the delta, as a vector of one number; changes no update."""

    elementwise: ClassVar[bool] = True
    ignores_zeros: ClassVar[bool] = True
    positive: ClassVar[frozenset[str]] = frozenset({"steps"})

    def finish(self, local: Vectors, done: ClientRound, step: Step) -> tuple[Vectors, Vectors]:
        return {"steps": torch.zeros_like(done.delta[..., :1]) + done.num_steps}, step.kept
