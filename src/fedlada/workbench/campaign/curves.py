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
    # Seeds without any value: the mean is over the others.
    without = {name: sum(not one.measured(metric)[1] for one in own) for name, own in histories.items()}
    missing = [f"{num} of {len(histories[name])} seeds of {name}" for name, num in without.items() if num]
    note = f"Without a value: {', '.join(missing)}." if missing else ""
    return replace(chart, y_label=label, log_y=log_y, note=note)
