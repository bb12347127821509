"""Slopes with honest intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}]"


def interval(values: Sequence[float], *, choices: int = 1) -> Estimate:
    """Student's t-interval of the mean: the seeds are independent, and each gives one value.

    Where the value was picked out of several `choices` the interval is wider, so that all of them hold (Bonferroni).
    """
    mean = statistics.fmean(values)
    outside = (1 - CONFIDENCE) / choices
    quantile = student_quantile(1 - outside / 2, len(values) - 1)
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The least-squares slope of log y against log x."""
    log_x, log_y = np.log(x), np.log(y)
    centred = log_x - log_x.mean()
    return float((centred * log_y).sum() / (centred * centred).sum())


def slope_over_seeds(x: Sequence[float], y: Sequence[Sequence[float]]) -> Estimate:
    """One slope for each seed, then the interval of their mean; `y[point][seed]`.

    Points of one seed share its problem, so their errors are not independent; those of different seeds are.
    """
    return interval([slope(x, own) for own in zip(*y, strict=True)])


@cache
def student_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t, by bisection of its distribution function (probability above one half)."""
    low, high = 0.0, 1.0
    while _student_tail(high, freedom) > 1 - probability:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_tail(middle, freedom) > 1 - probability else (low, middle)
    return (low + high) / 2


def _student_tail(t: float, freedom: int) -> float:
    """P(T > t) for t >= 0: with t = sqrt(freedom) tan(angle) it is an integral of cos^(freedom - 1)."""
    angle = np.linspace(math.atan(t / math.sqrt(freedom)), math.pi / 2, 2001)
    # A power of a number that rounding has put below zero would be NaN.
    height = np.cos(angle).clip(min=0) ** (freedom - 1)
    area = (angle[1] - angle[0]) / 3 * (height[0] + 4 * height[1::2].sum() + 2 * height[2:-1:2].sum() + height[-1])
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(math.pi) / 2
    return float(area * math.exp(log_scale))
