"""T4: FedLADA's alpha, the weight of a client's own update beside the global direction."""

from __future__ import annotations

from fedlada.paper.main_runs import main_group, stands_for
from fedlada.paper.published import AMENDED_WEIGHT
from fedlada.paper.rules import accuracy_rule
from fedlada.paper.setting import Setting
from fedlada.paper.target import Results, Shown, Target, percent, printed
from fedlada.plots.chart import Chart, Series
from fedlada.workbench.campaign.curves import outcome_curves
from fedlada.workbench.campaign.over_seeds import best, final, over_seeds
from fedlada.workbench.campaign.request import Request
from fedlada.workbench.report.table import Table

PAPER = "tinyimagenet"


def requests(setting: Setting) -> list[Request]:
    """FedLADA for each alpha."""
    goal = setting.goal(setting.scale.curve)
    return [
        request
        for alpha in AMENDED_WEIGHT
        for request in setting.requests(_group(setting, alpha), PAPER, "fedlada", goal, hyper={"alpha": alpha})
    ]


def _group(setting: Setting, alpha: float) -> str:
    return f"{main_group(setting, PAPER, 'fedlada')}, alpha {alpha:g}"


def show(setting: Setting, results: Results) -> Shown:
    """Accuracy by alpha."""
    figures = {
        alpha: over_seeds(results[_group(setting, alpha)], best("test_accuracy", setting.smooth))
        for alpha in AMENDED_WEIGHT
    }
    last = final("test_accuracy", setting.smooth)
    rows = tuple(
        (
            f"{alpha:g}",
            printed(paper),
            percent(figures[alpha]),
            percent(over_seeds(results[_group(setting, alpha)], last)),
        )
        for alpha, paper in AMENDED_WEIGHT.items()
    )
    what = (
        f"The paper does not say whether best or last; here both, of {setting.goal(setting.scale.curve).rounds} rounds"
    )
    columns = ("alpha", "paper %", "our best %", "our last %")
    title = f"T4: alpha of FedLADA on {stands_for(setting, PAPER)}"
    notes = (accuracy_rule(setting, what), "alpha = 1 is LocalAdam.")
    known = [(alpha, 100 * figure.mean) for alpha, figure in figures.items() if figure.mean is not None]
    by_alpha = Chart(
        "T4: accuracy by alpha",
        "alpha",
        "best test accuracy, %",
        (
            Series("paper, TinyImageNet", tuple(AMENDED_WEIGHT), tuple(AMENDED_WEIGHT.values())),
            Series(
                f"ours, {setting.title(PAPER)}",
                *(tuple(one) for one in zip(*known, strict=True)) if known else ((), ()),
            ),
        ),
        log_x=True,
    )
    lines = outcome_curves(
        f"T4: FedLADA by alpha on {setting.title(PAPER)}",
        {f"alpha {alpha:g}": results[_group(setting, alpha)] for alpha in AMENDED_WEIGHT},
        "test_accuracy",
    )
    return Shown((Table(title, columns, rows, notes),), (by_alpha, lines))


TARGET = Target(
    name="T4", title="The amended weight alpha of FedLADA", papers=(PAPER,), requests=requests, show=show, quick_seeds=2
)
