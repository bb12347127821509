"""Rounds to a target: how long a run must be planned to be, so that its mean squared gradient norm is small enough.

The theorem's step sizes depend on the horizon T, and it bounds the mean over the whole run. So the rounds to a target
are the least T from which on a run of T rounds, with the step sizes of that T, has a mean at or below the target; a
run is never stopped early, and no single lucky round can reach the target.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedlada import recipes
from fedlada.methods.method import FederatedMethod
from fedlada.paper.theory.problem import Problem
from fedlada.paper.theory.trajectory import rounds

SCALES = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0, 16.0)
"""Factors on the theorem's local rate: the best one controls for the effect of the step-size formula."""
THEOREM = SCALES.index(1.0)
FIRST_HORIZON = 8


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A cohort's size, its number of local steps, and FedLADA's hyperparameters.

    With b1 = 1/2 a round's first moments have grown after a few steps; the paper's 0.9 takes a good part of a round.
    """

    cohort_size: int
    num_steps: int
    alpha: float = 0.5
    beta1: float = 0.5
    beta2: float = 0.9
    v_init: float = 0.25

    def __post_init__(self) -> None:
        least = self.beta1 / (1 - self.beta1)
        if not self.num_steps > least:
            raise ValueError(f"the theorem needs more than {least:g} local steps, got {self.num_steps}")

    @property
    def server_rate(self) -> float:
        """eta_g: with eta_l = 1 / sqrt(K T) it makes K eta_g eta_l = sqrt(S K / T), whatever K and T are."""
        return math.sqrt(self.cohort_size)

    def local_rate(self, horizon: int) -> float:
        """eta_l for a run of `horizon` rounds."""
        return 1 / math.sqrt(self.num_steps * horizon)

    def effective_rate(self, horizon: int) -> float:
        """K eta_g eta_l, the paper's eta eta_l."""
        return self.num_steps * self.server_rate * self.local_rate(horizon)

    def meets_conditions(self, problem: Problem, horizon: int) -> bool:
        """Whether the theorem's three bounds on step sizes hold, with G_theta = 1 / eps_v and mu = 1.

        K eta_g eta_l is at most 1 / (4 L) and at most b1 S (m - 1) 2 / (32 (m - S) L G); the third is on eta_l alone.
        """
        bound = 1 / math.sqrt(self.v_init)
        smooth, clients, active = problem.smoothness, problem.num_clients, self.cohort_size
        idle = 32 * (clients - active) * smooth * bound
        of_sampling = math.inf if idle == 0 else self.beta1 * active * (clients - 1) * 2 / idle
        of_drift = 1 / (2 * math.sqrt(2 * self.alpha * (1 - self.beta1) * self.num_steps) * bound * smooth)
        step = self.effective_rate(horizon)
        return step <= min(1 / (4 * smooth), of_sampling) and self.local_rate(horizon) <= of_drift


def auxiliary(now: Tensor, last: Tensor, alpha: float) -> Tensor:
    """z^t = x^t / alpha - (1 - alpha) / alpha x^{t-1}, the sequence whose gradients the theorem bounds."""
    return now / alpha - (1 - alpha) / alpha * last


def gradient_norms(
    problem: Problem, method: FederatedMethod, alpha: float, seeds: Sequence[int], **run: Any
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each round of a `run` ||grad F(z^t)||^2, `[rate, seed]`, and x^t."""
    last = problem.start  # x^{-1} = x^0
    for visit in rounds(problem, method, seeds=seeds, **run):
        now = visit.before.params
        yield problem.gradient(auxiliary(now, last, alpha)).square().sum(-1), now
        last = now


@torch.inference_mode()
def mean_gradient(problem: Problem, setting: Setting, seeds: Sequence[int], horizon: int) -> Tensor:
    """(1/T) sum_t ||grad F(z^t)||^2 for each of `SCALES` and each seed."""
    alpha = setting.alpha
    method = recipes.fedlada(
        alpha=alpha,
        beta1=setting.beta1,
        beta2=setting.beta2,
        v_init=setting.v_init,
        server_lr=setting.server_rate,
    )
    total = torch.zeros(len(SCALES), len(seeds), dtype=torch.float64)
    rates = [scale * setting.local_rate(horizon) for scale in SCALES]
    sizes = {"cohort_size": setting.cohort_size, "num_steps": setting.num_steps, "num_rounds": horizon}
    for norm, _ in gradient_norms(problem, method, alpha, seeds, rates=rates, **sizes):
        total += norm
    return total / horizon


@dataclass(frozen=True)
class Search:
    """Horizons that were tried, and the mean squared gradient norm of each, scale and seed: `means[horizon]`."""

    setting: Setting
    target: float
    horizons: tuple[int, ...]
    means: tuple[Tensor, ...]

    def rounds(self, *, best: bool = False) -> tuple[float, ...] | None:
        """Rounds to the target for each seed, with the theorem's rate or the best scale; None if one never reached it.

        Between two horizons the mean is taken to follow a power of T.
        """
        curves = [self._curve(means, best) for means in self.means]
        needed = [_last_crossing(self.horizons, own, self.target) for own in zip(*curves, strict=True)]
        return None if None in needed else tuple(one for one in needed if one is not None)

    def best_scale(self) -> float:
        """The scale with the lowest mean over seeds at the last horizon."""
        return SCALES[int(self.means[-1].mean(1).argmin())]

    def decay(self) -> float:
        """The power of T with which the mean falls at the last doubling: -1/2 where 1 / sqrt(S K T) dominates."""
        before, after = (float(means[THEOREM].mean()) for means in self.means[-2:])
        return math.log(after / before) / math.log(self.horizons[-1] / self.horizons[-2])

    @staticmethod
    def _curve(means: Tensor, best: bool) -> list[float]:
        # One scale for all seeds: a choice per seed would select for chance.
        scale = int(means.mean(1).argmin()) if best else THEOREM
        return [float(value) for value in means[scale]]


def search(problem: Problem, setting: Setting, seeds: Sequence[int], *, target: float, most_rounds: int) -> Search:
    """Double the horizon until every seed's mean is at the target, with the theorem's rate and with the best."""
    horizons: list[int] = []
    means: list[Tensor] = []
    horizon = FIRST_HORIZON
    while horizon <= most_rounds:
        horizons.append(horizon)
        means.append(mean_gradient(problem, setting, seeds, horizon))
        if bool((means[-1][THEOREM] <= target).all()) and len(horizons) > 1:
            break
        horizon *= 2
    return Search(setting, target, tuple(horizons), tuple(means))


def _last_crossing(horizons: Sequence[int], means: Sequence[float], target: float) -> float | None:
    """The horizon from which on the mean stays at or below the target; None if the last one is still above.

    The last crossing counts, since a few large steps can throw a short run far out, where this problem is flat.
    """
    if means[-1] > target:
        return None
    above = [index for index, mean in enumerate(means) if mean > target]
    if not above:
        return float(horizons[0])
    last = above[-1]
    share = math.log(means[last] / target) / math.log(means[last] / means[last + 1])
    return float(horizons[last] * (horizons[last + 1] / horizons[last]) ** share)
