"""Slopes with confidence intervals over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from fedlada.plots.interval import Estimate, interval


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The least-squares slope of log y against log x."""
    return statistics.linear_regression([*map(math.log, x)], [*map(math.log, y)]).slope


def slope_over_seeds(x: Sequence[float], y: Sequence[Sequence[float]]) -> Estimate:
    """One slope for each seed, then the interval of their mean; `y[point][seed]`.

    Points of one seed share its problem, so their errors are not independent; those of different seeds are.
    """
    return interval([slope(x, own) for own in zip(*y, strict=True)])
