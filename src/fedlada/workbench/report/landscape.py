"""The charts of a sweep: the best curves, and the score by hyperparameter value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

from fedlada.plots.chart import Chart, Series
from fedlada.plots.curves import is_number
from fedlada.training.target import lower_is_better
from fedlada.workbench.campaign.curves import outcome_curves
from fedlada.workbench.campaign.sweep import Scored, Selection
from fedlada.workbench.words import in_words, shown

NUM_CURVES = 8
MOST_LINES = 6
"""More lines in one chart cannot be distinguished."""
MOST_AXES = 3
"""With more axes, a chart for every pair would be too many."""
RIVALS = {"local_epochs": "local_steps", "local_steps": "local_epochs"}
"""Alternatives of which a run has one: varying one switches the other off."""


def landscape(scored: Sequence[Scored], selection: Selection, usual: Mapping[str, Any] | None = None) -> list[Chart]:
    """All charts of a sweep, the best configuration first; `usual` are the values around which each one was varied."""
    lines = {line_name(one, scored, usual): list(one.outcomes) for one in scored[:NUM_CURVES]}
    known = [one for one in scored if one.score.mean is not None]
    names = dict.fromkeys(name for one in scored for name in one.candidate.values)
    axes = [name for name in names if len(_values(name, known)) > 1]
    charts = [outcome_curves(f"Sweep: {selection.metric} of the best", lines, selection.metric)]
    if usual is not None:
        alone = (_alone(name, known, usual, selection) for name in axes)
        return charts + [chart for chart in alone if chart is not None]
    charts += [_along(name, known, selection) for name in axes]
    if len(axes) <= MOST_AXES:
        pairs = (_by_two(x, y, known, selection) for x, y in combinations(axes, 2))
        charts += [chart for chart in pairs if chart is not None]
    return charts


def line_name(one: Scored, scored: Sequence[Scored], usual: Mapping[str, Any] | None) -> str:
    """The values that distinguish a configuration from the others; all would not fit into a legend."""
    values = one.candidate.values
    if usual is not None:
        return in_words({name: value for name, value in values.items() if value != usual[name]}) or "nothing varied"
    shared = {
        name for name, value in values.items() if all(other.candidate.values.get(name) == value for other in scored)
    }
    return in_words({name: value for name, value in values.items() if name not in shared}) or in_words(values)


def _alone(name: str, scored: Sequence[Scored], usual: Mapping[str, Any], selection: Selection) -> Chart | None:
    """The configurations in which only this is varied; None if there are fewer than two."""
    varied = {id(one): {key for key, value in one.candidate.values.items() if value != usual[key]} for one in scored}
    points = _points(name, [one for one in scored if varied[id(one)] <= {name, RIVALS.get(name)}])
    if len(points) < 2:
        return None
    x, y = zip(*points, strict=True)
    return _chart(f"Sweep: score by {name} alone", name, (Series("", x, y),), selection)


def _number(scored: Scored, name: str) -> float | None:
    value = scored.candidate.values.get(name)
    return float(value) if is_number(value) else None


def _along(name: str, scored: Sequence[Scored], selection: Selection) -> Chart:
    """Every configuration, and the best of those that share a value."""
    points = _points(name, scored)
    x, y = zip(*points, strict=True)
    series = (Series("configurations", x, y, style="points"), _best_of_each("the best of each", points, selection))
    return _chart(f"Sweep: score by {name}", name, series, selection)


def _by_two(first: str, second: str, scored: Sequence[Scored], selection: Selection) -> Chart | None:
    """The best for each value of one, a line for each value of the other; None where no configuration has both."""
    across, lines = first, second
    if len(_values(first, scored)) < len(_values(second, scored)):
        across, lines = second, first
    every = _values(lines, scored)
    values, left = every[:MOST_LINES], every[MOST_LINES:]
    found = {value: _points(across, [one for one in scored if _number(one, lines) == value]) for value in values}
    series = [_best_of_each(f"{lines} {shown(value)}", points, selection) for value, points in found.items() if points]
    if not series:
        return None
    left_out = ", ".join(shown(value) for value in left)
    note = f"Not drawn: {lines} {left_out}." if left else ""
    return _chart(f"Sweep: score by {across} and {lines}", across, tuple(series), selection, note)


def _points(name: str, scored: Sequence[Scored]) -> list[tuple[float, float]]:
    pairs = ((_number(one, name), one.score.mean) for one in scored)
    return sorted((x, y) for x, y in pairs if x is not None and y is not None)


def _values(name: str, scored: Sequence[Scored]) -> list[float]:
    return sorted({value for one in scored if (value := _number(one, name)) is not None})


def _best_of_each(name: str, points: Sequence[tuple[float, float]], selection: Selection) -> Series:
    choose: Callable[..., float] = min if lower_is_better(selection.metric) else max
    xs = sorted({x for x, _ in points})
    return Series(name, tuple(xs), tuple(choose(y for x, y in points if x == at) for at in xs))


def _chart(title: str, x_label: str, series: tuple[Series, ...], selection: Selection, note: str = "") -> Chart:
    lowest = min(x for one in series for x in one.x)
    return Chart(title, x_label, f"{selection.by} {selection.metric}", series, log_x=lowest > 0, note=note)
