"""Runs as charts: each group's mean over its seeds, with a band of their spread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Protocol, TypeGuard

import numpy as np

from fedlada.methods.validation import one_of
from fedlada.plots.chart import Chart, Series
from fedlada.plots.interval import interval

Row = Mapping[str, Any]
"""One round of a run's history."""


class HasHistory(Protocol):
    """A result, or a stored run."""

    @property
    def history(self) -> Sequence[Row]:
        """Its rounds."""


Run = Sequence[Row] | HasHistory
Runs = Run | Sequence[Run]
"""The runs of one method: one for each seed, or a single one."""
X_AXES: dict[str, tuple[str, Callable[[Row], float]]] = {
    "rounds": ("round", lambda _: 1.0),
    "megabytes": ("megabytes, up + down", lambda row: (_of(row, "bytes_up") + _of(row, "bytes_down")) / 1e6),
    "seconds": ("seconds of training", lambda row: _of(row, "seconds")),
}
"""Horizontal axes: the label, and each round's increment."""
BANDS = ("range", "std", "ci")
"""Spread over seeds: from the lowest to the highest, one standard deviation to either side of the mean, or the 95 %
confidence interval of the mean."""


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


def seeds_by_name(histories: Mapping[str, Runs]) -> dict[str, list[Sequence[Row]]]:
    """The histories of each method, one for each seed; refuses anything else."""
    if not isinstance(histories, Mapping):
        raise ValueError(f"histories must be a dict such as {{'fedavg': [history]}}, got {type(histories).__name__}")
    return {name: _seeds(name, runs) for name, runs in histories.items()}


def _seeds(name: str, runs: Any) -> list[Sequence[Row]]:
    if isinstance(runs, (list, tuple)) and not runs:
        return []
    if _is_history(own := _history_of(runs)):
        return [own]
    found = [_history_of(one) for one in runs] if isinstance(runs, (list, tuple)) else []
    if found and all(map(_is_history, found)):
        return found
    wrong = next((type(one).__name__ for one in found if not _is_history(one)), "")
    kind = type(runs).__name__
    raise ValueError(
        f"the runs of {name!r} must be histories or results, a list with one for each seed, got "
        f"{f'a {kind} with {wrong}' if wrong else kind}"
    )


def _history_of(run: Any) -> Any:
    return getattr(run, "history", run)


def _is_history(value: Any) -> bool:
    return isinstance(value, Sequence) and all(isinstance(row, Mapping) for row in value)


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
    elif band == "ci":
        every = [interval(values) for values in table[..., 1].T.tolist()]
        low, high = np.array([(one.low, one.high) for one in every]).T
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
