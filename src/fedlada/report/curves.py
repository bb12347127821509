"""Runs as charts: each group's mean over its seeds, with a band from the lowest to the highest."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from fedlada.history import Row
from fedlada.report.chart import Chart, Series
from fedlada.report.records import EVALUATED, RunRecord

X_AXES: dict[str, tuple[str, Callable[[Row], float]]] = {
    "rounds": ("round", lambda _: 1.0),
    "megabytes": ("megabytes, up + down", lambda row: (_of(row, "bytes_up") + _of(row, "bytes_down")) / 1e6),
    "seconds": ("seconds of training", lambda row: _of(row, "seconds")),
}
"""What a curve can be drawn against: its label, and how much of it a round adds."""


def curves(
    groups: Mapping[str, Sequence[Sequence[Row]]],
    metric: str,
    *,
    against: str = "rounds",
    title: str = "",
    targets: Sequence[float] = (),
) -> Chart:
    """One metric of several groups of runs, over the rounds that all runs of a group have."""
    label, amount = X_AXES[against]
    series = [_series(name, runs, metric, amount) for name, runs in groups.items()]
    return Chart(
        title=title,
        x_label=label,
        y_label=metric.replace("_", " "),
        series=tuple(one for one in series if one.x),
        targets=tuple(targets),
    )


def _series(name: str, runs: Sequence[Sequence[Row]], metric: str, amount: Callable[[Row], float]) -> Series:
    measured = [found for rows in runs if (found := _measured(rows, metric, amount))]
    rounds = sorted(set.intersection(*(set(one) for one in measured))) if measured else []
    if not rounds:
        return Series(name, (), ())
    table = np.array([[one[round] for round in rounds] for one in measured])
    x, y = table.mean(axis=0).T
    if len(measured) == 1:
        return Series(name, _floats(x), _floats(y))
    return Series(name, _floats(x), _floats(y), _floats(table[..., 1].min(axis=0)), _floats(table[..., 1].max(axis=0)))


def _measured(rows: Sequence[Row], metric: str, amount: Callable[[Row], float]) -> dict[int, tuple[float, float]]:
    """x and y by round, where the metric was measured."""
    total = accumulate(amount(row) for row in rows)
    return {row["round"]: (x, row[metric]) for row, x in zip(rows, total, strict=True) if _is_number(row.get(metric))}


def all_curves(runs: Sequence[RunRecord]) -> dict[str, Chart]:
    """Every metric against everything it can be drawn against, by a name for a file; each data set on its own."""
    charts = {}
    datasets = dict.fromkeys(str(run.config.get("dataset", "")) for run in runs)
    for dataset in datasets:
        own = [run for run in runs if str(run.config.get("dataset", "")) == dataset]
        groups: dict[str, list[Sequence[Row]]] = {}
        for run in own:
            groups.setdefault(run.group, []).append(run.rows)
        targets = sorted({float(run.config["target"]) for run in own if _is_number(run.config.get("target"))})
        for metric in _metrics(own):
            for against in X_AXES:
                chart = curves(
                    groups,
                    metric,
                    against=against,
                    title=dataset,
                    targets=targets if metric == "test_accuracy" else (),
                )
                name = f"{dataset}-{metric}" if len(datasets) > 1 else metric
                charts[re.sub(r"[^\w.-]+", "-", f"{name}-by-{against}")] = chart
    return charts


def _metrics(runs: Sequence[RunRecord]) -> list[str]:
    """What was evaluated, the loss of training and the drift."""
    names = dict.fromkeys(name for run in runs for row in run.rows for name in row if _is_number(row[name]))
    return [name for name in names if name.startswith(EVALUATED) or name in ("train_loss", "drift")]


def _of(row: Row, name: str) -> float:
    value = row.get(name)
    return float(value) if value is not None and _is_number(value) else 0.0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
