"""One figure over several seeds, with missing seeds reported."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedlada.workbench.campaign.request import DIVERGED, DONE, UNFINISHED, Milestone, Outcome, moving_average
from fedlada.workbench.report.table import NEVER, spread

Value = Callable[[Outcome], float | None]
"""A figure of a run: None if it was never reached, NaN if it was not measured."""


@dataclass(frozen=True)
class OverSeeds:
    """The values of the seeds that have one, and the status of the others."""

    values: tuple[float, ...]
    num_seeds: int
    num_diverged: int = 0
    num_unfinished: int = 0
    num_unmeasured: int = 0
    """Of runs that ended; values that were never measured do not count as missed."""

    @property
    def mean(self) -> float | None:
        """Over all seeds; None unless every one has a value."""
        return statistics.fmean(self.values) if self.values and len(self.values) == self.num_seeds else None

    def text(self, digits: int = 1, *, without: str = NEVER) -> str:
        """Mean and standard deviation; if seeds are missing, why and how many (`without`: ended without a value)."""
        known = spread(self.values, f".{digits}f")
        if len(self.values) == self.num_seeds:
            return known
        details = [f"{len(self.values)} of {self.num_seeds}: {known}"] if self.values else []
        if self.num_diverged and (self.num_diverged < self.num_seeds or self.num_unfinished):
            details.append(f"{self.num_diverged} diverged")
        if self.num_unfinished and (self.num_unfinished < self.num_seeds or self.num_diverged):
            details.append(f"{self.num_unfinished} unfinished")
        if 0 < self.num_unmeasured < self.num_seeds:
            details.append(f"{self.num_unmeasured} not measured")
        if self.num_unfinished:
            head = "unfinished" if self.num_unfinished == self.num_seeds else "…"
        else:
            head = "diverged" if self.num_diverged == self.num_seeds else without
            head = "-" if self.num_unmeasured == self.num_seeds else head
        return f"{head} ({'; '.join(details)})" if details else head


def over_seeds(outcomes: Sequence[Outcome], value: Value) -> OverSeeds:
    """A figure of each outcome; None where it has none."""
    found = [value(outcome) for outcome in outcomes]
    values = [None if one is None or math.isnan(one) else one for one in found]
    missing = [outcome.status for outcome, one in zip(outcomes, found, strict=True) if one is None]
    return OverSeeds(
        tuple(one for one in values if one is not None),
        len(outcomes),
        num_diverged=missing.count(DIVERGED),
        num_unfinished=missing.count(UNFINISHED),
        num_unmeasured=sum(one is not None and math.isnan(one) for one in found),
    )


def rounds_to(milestone: Milestone) -> Value:
    """The round of the milestone; known as soon as it is reached."""

    def find(outcome: Outcome) -> float | None:
        is_measured = bool(outcome.history.measured(milestone.metric)[0])
        return milestone.round_in(outcome.history) if is_measured or outcome.status != DONE else math.nan

    return find


def final(metric: str, smooth: int = 1) -> Value:
    """The value of the last evaluation, or the mean of the last few."""
    return lambda outcome: _last(_smoothed(outcome, metric, smooth))


def best(metric: str, smooth: int = 1) -> Value:
    """The highest value."""
    return lambda outcome: max(_smoothed(outcome, metric, smooth), default=None)


def best_round(metric: str, smooth: int = 1) -> Value:
    """The first round with the highest value."""

    def find(outcome: Outcome) -> float | None:
        values = _smoothed(outcome, metric, smooth)
        rounds = outcome.history.measured(metric)[0][smooth - 1 :]
        return rounds[values.index(max(values))] if values else None

    return find


def _smoothed(outcome: Outcome, metric: str, smooth: int) -> list[float]:
    """All values of a finished run; those of an unfinished one may still change."""
    return moving_average(outcome.history.measured(metric)[1], smooth) if outcome.status == DONE else []


def _last(values: Sequence[float]) -> float | None:
    return values[-1] if values else None
