"""The clients' learning rate as a function of the round (1, 2, ...). Any such function may be given instead."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from fedlada.methods.validation import count, not_negative, positive, weight_of_new

Schedule = Callable[[int], float]


@dataclass(frozen=True)
class Constant:
    """The same rate in every round."""

    is_pure: ClassVar[bool] = True

    lr: float

    def __post_init__(self) -> None:
        positive("lr", self.lr)

    def __call__(self, round: int) -> float:
        return self.lr


@dataclass(frozen=True)
class Exponential:
    """lr * decay^(round - 1), as in the paper (decay 0.998)."""

    is_pure: ClassVar[bool] = True

    lr: float
    decay: float = 0.998

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        weight_of_new("lr_decay", self.decay)

    def __call__(self, round: int) -> float:
        return float(self.lr * self.decay ** (round - 1))


@dataclass(frozen=True)
class Cosine:
    """From lr in round 1 along half a cosine to `final`, which it would reach in the round after `num_rounds`."""

    is_pure: ClassVar[bool] = True

    lr: float
    num_rounds: int
    final: float = 0.0

    def __post_init__(self) -> None:
        positive("lr", self.lr)
        count("num_rounds", self.num_rounds)
        not_negative("final", self.final)

    def __call__(self, round: int) -> float:
        progress = min(1.0, (round - 1) / self.num_rounds)
        return self.final + (self.lr - self.final) * (1 + math.cos(math.pi * progress)) / 2


@dataclass(frozen=True)
class WarmUp:
    """Linear warm-up of a schedule, or of a rate: 1/n, 2/n, ... of its rate, up to the full rate in round n."""

    is_pure: ClassVar[bool] = True

    schedule: Schedule | float
    num_rounds: int

    def __post_init__(self) -> None:
        as_schedule(self.schedule, 1)
        count("num_rounds", self.num_rounds)

    def __call__(self, round: int) -> float:
        return as_schedule(self.schedule, 1)(round) * min(1.0, round / self.num_rounds)


@dataclass(frozen=True)
class Debiased:
    """A schedule, or a rate, over 1 - (1 - alpha)^round, for methods that amend towards the global direction by alpha.

    The direction is a moving average that starts at zero: in round t it has 1 - (1 - alpha)^t of its size, and so have
    the clients' steps. A larger learning rate compensates exactly, because the direction is measured per unit of rate:
    the steps are those of a method whose alpha falls from 1 in the first round as 1, 1/(2 - alpha), ... to alpha.
    Weight decay after the amendment, as in FedCM's L2 and decoupled decay, grows with the rate too.
    """

    is_pure: ClassVar[bool] = True

    schedule: Schedule | float
    alpha: float

    def __post_init__(self) -> None:
        as_schedule(self.schedule, 1)
        weight_of_new("alpha", self.alpha)

    def __call__(self, round: int) -> float:
        return as_schedule(self.schedule, 1)(round) / (1 - (1 - self.alpha) ** round)


def as_schedule(lr: float | Schedule, decay: float) -> Schedule:
    """The given schedule, or a number with its decay per round."""
    if callable(lr):
        if decay != 1:
            raise ValueError("lr_decay goes with a number: lr is already a schedule")
        return lr
    return Exponential(lr, decay) if decay != 1 else Constant(lr)
