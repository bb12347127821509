"""A table or figure of the paper: which runs it needs, and how they become tables and charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from fedlada.paper.setting import Setting
from fedlada.plots.chart import Chart
from fedlada.workbench.campaign.over_seeds import OverSeeds, best, final, over_seeds
from fedlada.workbench.campaign.request import Outcome, Request
from fedlada.workbench.report.table import NEVER, Table

Name = TypeVar("Name")
Lines = Mapping[str, Sequence[Request]]
"""The runs of each line of a chart, or row of a table, by its name: one for each seed."""
Results = Mapping[str, Sequence[Outcome]]
"""The outcomes of each group of requests, one for each seed."""


@dataclass(frozen=True)
class Shown:
    """The tables and charts of a target."""

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
    """The methods it compares, of which some can be left out; none if it compares variants of one method."""
    requests: Callable[[Setting], Sequence[Request]] = lambda _: ()
    """The runs that it needs; none if it is computed without runs."""
    show: Callable[[Setting, Results], Shown]
    smoke_seeds: int = 1
    """How many seeds a scale takes by default."""
    quick_seeds: int = 3
    full_seeds: int = 1
    is_of_the_paper: bool = True
    """Whether it is one of the paper's tables and figures, which "all" stands for."""

    def seeds(self, scale: str) -> tuple[int, ...]:
        """The seeds of a scale where none are given."""
        return tuple(range({"smoke": self.smoke_seeds, "quick": self.quick_seeds, "full": self.full_seeds}[scale]))


def group(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Outcomes by their group, in the order of their requests."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.request.group, []).append(outcome)
    return groups


def each_once(*lines: Mapping[Name, Sequence[Request]]) -> list[Request]:
    """All runs of these lines; shared ones occur once."""
    groups = {own[0].group: own for one in lines for own in one.values()}
    return [request for own in groups.values() for request in own]


def of_lines(lines: Mapping[Name, Sequence[Request]], results: Results) -> dict[Name, Sequence[Outcome]]:
    """The outcomes of each line."""
    return {name: results[own[0].group] for name, own in lines.items()}


def printed(value: float | None, digits: int = 1) -> str:
    """A figure of the paper."""
    if value is None:
        return "-"
    return NEVER if math.isinf(value) else f"{value:.{digits}f}"


def ratios(values: Sequence[float | None]) -> list[str]:
    """Each relative to the best (lowest) of them; empty where a target was never reached."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return ["-"] * len(values)
    return ["-" if value is None or not math.isfinite(value) else f"{value / min(known):.2f}×" for value in values]


def percent(figure: OverSeeds, digits: int = 1) -> str:
    """Accuracies in percent."""
    scaled = replace(figure, values=tuple(100 * value for value in figure.values))
    return scaled.text(digits, without="-")


def points_above(figure: OverSeeds, base: OverSeeds | None) -> str:
    """The difference of two mean accuracies, in points."""
    if figure.mean is None or base is None or base.mean is None:
        return "-"
    return f"{100 * (figure.mean - base.mean):+.1f}"


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
