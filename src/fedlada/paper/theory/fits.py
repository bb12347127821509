"""Slopes with confidence intervals over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedlada.methods.extras import missing

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

    For a value selected among several `choices` the interval is wider (Bonferroni).
    """
    mean = statistics.fmean(values)
    outside = (1 - CONFIDENCE) / choices
    quantile = float(scipy_stats().t.ppf(1 - outside / 2, len(values) - 1))
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The least-squares slope of log y against log x."""
    return float(scipy_stats().linregress(np.log(x), np.log(y)).slope)


def slope_over_seeds(x: Sequence[float], y: Sequence[Sequence[float]]) -> Estimate:
    """One slope for each seed, then the interval of their mean; `y[point][seed]`.

    Points of one seed share its problem, so their errors are not independent; those of different seeds are.
    """
    return interval([slope(x, own) for own in zip(*y, strict=True)])


def scipy_stats() -> Any:
    """The module `scipy.stats`; an error names the extra if it is missing."""
    try:
        from scipy import stats
    except ImportError:
        raise missing("the theory's intervals need scipy", "theory") from None
    return stats
