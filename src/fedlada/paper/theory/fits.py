"""Slopes with confidence intervals over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedlada.plots.interval import Estimate, interval, scipy_stats


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The least-squares slope of log y against log x."""
    return float(scipy_stats().linregress(np.log(x), np.log(y)).slope)


def slope_over_seeds(x: Sequence[float], y: Sequence[Sequence[float]]) -> Estimate:
    """One slope for each seed, then the interval of their mean; `y[point][seed]`.

    Points of one seed share its problem, so their errors are not independent; those of different seeds are.
    """
    return interval([slope(x, own) for own in zip(*y, strict=True)])
