"""Confidence intervals of a mean over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

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
    half = _quantile(1 - outside / 2, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


@cache
def _quantile(share: float, freedom: int) -> float:
    """Of Student's t; a curve needs the same one in every round."""
    return float(scipy_special().stdtrit(freedom, share))


def scipy_special() -> Any:
    """The module `scipy.special`, imported in a third of the time of `scipy.stats`; an error names a missing extra."""
    try:
        from scipy import special
    except ImportError:
        raise missing("confidence intervals need scipy", "theory") from None
    return special
