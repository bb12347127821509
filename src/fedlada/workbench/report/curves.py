"""All charts of a set of runs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedlada.plots.chart import Chart
from fedlada.plots.curves import X_AXES, Row, curves, is_number
from fedlada.workbench.report.records import RunRecord, target_of

COUNTED = ("round", "lr", "seconds", "bytes_up", "bytes_down", "nd_up", "nd_down")
"""Numbers of a round that are costs, not results."""


def all_curves(runs: Sequence[RunRecord], band: str = "range") -> dict[str, Chart]:
    """Every metric against everything it can be drawn against, by a name for a file; each data set on its own."""
    charts = {}
    datasets = dict.fromkeys(str(run.config.get("dataset", "")) for run in runs)
    for dataset in datasets:
        own = [run for run in runs if str(run.config.get("dataset", "")) == dataset]
        groups: dict[str, list[Sequence[Row]]] = {}
        for run in own:
            groups.setdefault(run.group, []).append(run.rows)
        targets = {target for run in own if (target := target_of(run.config, run.rows)) is not None}
        for metric in _metrics(own):
            for against in X_AXES:
                chart = curves(
                    groups,
                    metric,
                    against=against,
                    title=dataset,
                    band=band,
                    targets=sorted(one.value for one in targets if one.column == metric),
                )
                name = f"{dataset}-{metric}" if len(datasets) > 1 else metric
                charts[re.sub(r"[^\w.-]+", "-", f"{name}-by-{against}")] = chart
    return charts


def _metrics(runs: Sequence[RunRecord]) -> list[str]:
    """The evaluated metrics, the loss of training, the drift, and numbers that callbacks added."""
    names = dict.fromkeys(name for run in runs for row in run.rows for name in row if is_number(row[name]))
    return [name for name in names if name not in COUNTED]
