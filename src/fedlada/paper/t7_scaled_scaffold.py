"""T7: SCAFFOLD with its correction scaled."""

from __future__ import annotations

from fedlada.paper.main_runs import stands_for
from fedlada.paper.published import SCALED_SCAFFOLD
from fedlada.paper.rules import accuracy_rule
from fedlada.paper.setting import Setting
from fedlada.paper.target import Results, Shown, Target, percent, printed
from fedlada.workbench.campaign.curves import outcome_curves
from fedlada.workbench.campaign.over_seeds import best, final, over_seeds
from fedlada.workbench.campaign.request import Request
from fedlada.workbench.report.table import Table

PAPER = "cifar10"


def requests(setting: Setting) -> list[Request]:
    """SCAFFOLD for each scale."""
    goal = setting.goal(setting.scale.curve)
    return [
        request
        for scale in SCALED_SCAFFOLD
        for request in setting.requests(_group(scale), PAPER, "scaffold", goal, hyper={"correction": scale})
    ]


def _group(scale: float) -> str:
    return f"SCAFFOLD, scale {scale:g}"


def show(setting: Setting, results: Results) -> Shown:
    """Accuracy by scale."""
    last, highest = final("test_accuracy", setting.smooth), best("test_accuracy", setting.smooth)
    rows = tuple(
        (
            f"{scale:g}",
            printed(paper, 2),
            percent(over_seeds(results[_group(scale)], last), 2),
            percent(over_seeds(results[_group(scale)], highest), 2),
        )
        for scale, paper in SCALED_SCAFFOLD.items()
    )
    what = (
        f"The paper does not say whether best or last; here both, of {setting.goal(setting.scale.curve).rounds} rounds"
    )
    notes = (accuracy_rule(setting, what), "Scale 0 is FedAvg, scale 1 SCAFFOLD.")
    title = f"T7: scaled corrections of SCAFFOLD on {stands_for(setting, PAPER)}"
    table = Table(title, ("scale", "paper %", "our last %", "our best %"), rows, notes)
    lines = {name: results[name] for name in map(_group, SCALED_SCAFFOLD)}
    return Shown((table,), (outcome_curves("T7: SCAFFOLD by the scale of its correction", lines, "test_accuracy"),))


TARGET = Target(
    name="T7", title="Scaled corrections of SCAFFOLD", papers=(PAPER,), requests=requests, show=show, quick_seeds=2
)
