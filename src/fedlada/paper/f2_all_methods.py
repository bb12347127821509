"""F2: all methods on the three data sets."""

from __future__ import annotations

from fedlada.paper.main_runs import by_method, main_runs, stands_for
from fedlada.paper.published import DATASETS, SEVEN
from fedlada.paper.setting import Setting
from fedlada.paper.target import Results, Shown, Target, final_table
from fedlada.workbench.campaign.curves import outcome_curves
from fedlada.workbench.campaign.request import Request


def requests(setting: Setting) -> list[Request]:
    """Seven methods for as many rounds as the curves have."""
    goal = setting.goal(setting.scale.curve)
    return [request for paper in setting.datasets(*DATASETS) for request in main_runs(setting, paper, SEVEN, goal)]


def show(setting: Setting, results: Results) -> Shown:
    """Training loss and accuracy for each data set."""
    tables, charts = [], []
    for paper in setting.datasets(*DATASETS):
        lines, place = by_method(setting, results, paper, SEVEN), stands_for(setting, paper)
        tables.append(final_table(f"F2: all methods on {place}", setting, lines))
        charts.append(outcome_curves(f"F2: training loss on {place}", lines, "train_loss", log_y=True))
        charts.append(outcome_curves(f"F2: test accuracy on {place}", lines, "test_accuracy"))
    return Shown(tuple(tables), tuple(charts))


TARGET = Target(
    name="F2", title="Loss and accuracy of all methods", papers=DATASETS, methods=SEVEN, requests=requests, show=show
)
