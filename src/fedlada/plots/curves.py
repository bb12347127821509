"""Runs as charts: each group's mean over its seeds, with a band of their spread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeGuard

import numpy as np

from fedlada.methods.validation import one_of
from fedlada.plots.chart import Chart, Series

Row = Mapping[str, Any]
"""One round of a run's history."""
X_AXES: dict[str, tuple[str, Callable[[Row], float]]] = {
    "rounds": ("round", lambda _: 1.0),
    "megabytes": ("megabytes, up + down", lambda row: (_of(row, "bytes_up") + _of(row, "bytes_down")) / 1e6),
    "seconds": ("seconds of training", lambda row: _of(row, "seconds")),
}
"""Horizontal axes: the label, and each round's increment."""
BANDS = ("range", "std")
"""Spread over seeds: from the lowest to the highest, or one standard deviation to either side of the mean."""


def curves(
    groups: Mapping[str, Sequence[Sequence[Row]]],
    metric: str,
    *,
    against: str = "rounds",
    title: str = "",
    targets: Sequence[float] = (),
    band: str = "range",
) -> Chart:
    """One metric of several groups of runs, over the rounds that all runs of a group have."""
    one_of("band", band, BANDS)
    label, amount = X_AXES[against]
    series = [_series(name, runs, metric, amount, band) for name, runs in groups.items()]
    return Chart(
        title=title,
        x_label=label,
        y_label=metric.replace("_", " "),
        series=tuple(one for one in series if one.x),
        targets=tuple(targets),
    )


def refuse_unmeasured(column: str, rows: Iterable[Row]) -> None:
    """Refuse a column that none of these rows has."""
    known = {name for row in rows for name in row}
    if known and column not in known:
        raise ValueError(f"no history has a column {column!r}; they have {', '.join(sorted(known))}")


def _series(name: str, runs: Sequence[Sequence[Row]], metric: str, amount: Callable[[Row], float], band: str) -> Series:
    measured = [found for rows in runs if (found := _measured(rows, metric, amount))]
    rounds = sorted(set.intersection(*(set(one) for one in measured))) if measured else []
    if not rounds:
        return Series(name, (), ())
    table = np.array([[one[round] for round in rounds] for one in measured])
    x, y = table.mean(axis=0).T
    if len(measured) == 1:
        return Series(name, _floats(x), _floats(y))
    low, high = table[..., 1].min(axis=0), table[..., 1].max(axis=0)
    if band == "std":
        deviation = table[..., 1].std(axis=0, ddof=1)
        low, high = y - deviation, y + deviation
    return Series(name, _floats(x), _floats(y), _floats(low), _floats(high))


def _measured(rows: Sequence[Row], metric: str, amount: Callable[[Row], float]) -> dict[int, tuple[float, float]]:
    """x and y by round, where the metric was measured."""
    total = accumulate(amount(row) for row in rows)
    return {row["round"]: (x, row[metric]) for row, x in zip(rows, total, strict=True) if is_number(row.get(metric))}


def _of(row: Row, name: str) -> float:
    value = row.get(name)
    return float(value) if is_number(value) else 0.0


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a number that can be plotted: a file can hold integers of any length."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
