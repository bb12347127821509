"""Charts of a campaign's runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedlada.plots.chart import Chart
from fedlada.plots.curves import curves
from fedlada.workbench.campaign.request import Outcome


def outcome_curves(
    title: str,
    results: Mapping[str, Sequence[Outcome]],
    metric: str,
    *,
    targets: Sequence[float] = (),
    log_y: bool = False,
) -> Chart:
    """Each group's mean over its seeds against rounds, with a band from the lowest to the highest seed."""
    histories = {name: [outcome.history for outcome in outcomes] for name, outcomes in results.items()}
    chart = curves(histories, metric, title=title, targets=targets)
    label = {"drift": "mean squared distance to the new global model"}.get(metric, chart.y_label)
    missing = [text for name, outcomes in results.items() if (text := _without(name, outcomes, metric))]
    note = f"Without a value: {', '.join(missing)}." if missing else ""
    return replace(chart, y_label=label, log_y=log_y, note=note)


def _without(name: str, outcomes: Sequence[Outcome], metric: str) -> str:
    """How many seeds of a line have no value at all, so that its mean is over the others."""
    num_missing = sum(not outcome.history.measured(metric)[1] for outcome in outcomes)
    return f"{num_missing} of {len(outcomes)} seeds of {name}" if num_missing else ""
