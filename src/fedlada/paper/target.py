"""A table or figure of the paper: which runs it needs, and how they become tables and charts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedlada.campaign.over_seeds import NEVER, OverSeeds, best, final, over_seeds
from fedlada.campaign.request import Outcome, Request
from fedlada.paper.setting import Setting
from fedlada.report.chart import Chart, Series
from fedlada.report.table import Table

Results = Mapping[str, Sequence[Outcome]]
"""The outcomes of each group of requests, one for each seed."""


@dataclass(frozen=True)
class Shown:
    """What a target shows."""

    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()

    def with_note(self, text: str) -> Shown:
        """The same with a sentence below every table and chart."""
        tables = tuple(replace(one, notes=(*one.notes, text)) for one in self.tables)
        return Shown(tables, tuple(replace(one, note=f"{one.note} {text}".strip()) for one in self.charts))


@dataclass(frozen=True, kw_only=True)
class Target:
    """One table or figure."""

    name: str
    title: str
    papers: tuple[str, ...] = ()
    """The paper's data sets that it is about."""
    methods: tuple[str, ...] = ()
    """The methods it compares, of which some can be left out; none where it is about the variants of one."""
    requests: Callable[[Setting], Sequence[Request]]
    show: Callable[[Setting, Results], Shown]
    smoke_seeds: int = 1
    """How many seeds a scale takes unless told."""
    quick_seeds: int = 3
    full_seeds: int = 1

    def seeds(self, scale: str) -> tuple[int, ...]:
        """The seeds of a scale where none are given."""
        return tuple(range({"smoke": self.smoke_seeds, "quick": self.quick_seeds, "full": self.full_seeds}[scale]))


def group(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Outcomes by their group, in the order of their requests."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.request.group, []).append(outcome)
    return groups


def printed(value: float | None, digits: int = 1) -> str:
    """A figure of the paper."""
    if value is None:
        return "-"
    return NEVER if math.isinf(value) else f"{value:.{digits}f}"


def ratios(values: Sequence[float | None]) -> list[str]:
    """Each relative to the best (lowest) of them; nothing for what never arrived."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return ["-"] * len(values)
    return ["-" if value is None or not math.isfinite(value) else f"{value / min(known):.2f}×" for value in values]


def percent(figure: OverSeeds, digits: int = 1) -> str:
    """Accuracies in percent."""
    scaled = OverSeeds(
        tuple(100 * value for value in figure.values),
        figure.num_seeds,
        figure.num_diverged,
        figure.num_unfinished,
        figure.num_unmeasured,
    )
    return scaled.text(digits, without="-")


def points_above(figure: OverSeeds, base: OverSeeds | None) -> str:
    """The difference of two mean accuracies, in points."""
    if figure.mean is None or base is None or base.mean is None:
        return "-"
    return f"{100 * (figure.mean - base.mean):+.1f}"


def curves(
    title: str,
    results: Mapping[str, Sequence[Outcome]],
    metric: str,
    *,
    targets: Sequence[float] = (),
    log_y: bool = False,
) -> Chart:
    """Each group's mean over its seeds against rounds, with a band from the lowest to the highest seed."""
    lines = [_line(name, outcomes, metric) for name, outcomes in results.items()]
    label = {"drift": "mean squared distance to the new global model"}.get(metric, metric.replace("_", " "))
    shown = tuple(line for line in lines if line.x)
    missing = [text for name, outcomes in results.items() if (text := _without(name, outcomes, metric))]
    note = f"Without a value: {', '.join(missing)}." if missing else ""
    return Chart(title, "round", label, shown, log_y=log_y, targets=tuple(targets), note=note)


def _without(name: str, outcomes: Sequence[Outcome], metric: str) -> str:
    """How many seeds of a line have no value at all, so that its mean is over the others."""
    num_missing = sum(not outcome.history.measured(metric)[1] for outcome in outcomes)
    return f"{num_missing} of {len(outcomes)} seeds of {name}" if num_missing else ""


def _line(name: str, outcomes: Sequence[Outcome], metric: str) -> Series:
    measured = [dict(zip(*outcome.history.measured(metric), strict=True)) for outcome in outcomes]
    measured = [one for one in measured if one]
    rounds = sorted(set.intersection(*map(set, measured))) if measured else []
    columns = [[one[round] for one in measured] for round in rounds]
    several = len(measured) > 1
    return Series(
        name,
        tuple(map(float, rounds)),
        tuple(statistics.fmean(column) for column in columns),
        tuple(min(column) for column in columns) if several else (),
        tuple(max(column) for column in columns) if several else (),
    )


def final_table(title: str, setting: Setting, lines: Results, *, drift: bool = False) -> Table:
    """The end of each curve of a figure, of which the paper prints no numbers."""
    rows = []
    for name, outcomes in lines.items():
        accuracies = (final("test_accuracy", setting.smooth), best("test_accuracy", setting.smooth))
        row = [name, *(percent(over_seeds(outcomes, value)) for value in accuracies)]
        row.append(over_seeds(outcomes, final("train_loss")).text(3, without="-"))
        if drift:
            row.append(over_seeds(outcomes, final("drift")).text(4, without="-"))
        rows.append(tuple(row))
    columns = ("runs", "last test accuracy %", "best test accuracy %", "last training loss")
    seeds = ", ".join(map(str, setting.seeds))
    note = f"The paper prints this as a figure, without numbers. Seeds: {seeds}; mean ± standard deviation of several."
    return Table(title, (*columns, "last consistency") if drift else columns, tuple(rows), (note,))
