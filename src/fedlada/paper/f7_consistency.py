"""F7: FedLADA's amendment against SCAFFOLD's correction: accuracy, and how far clients end from each other."""

from __future__ import annotations

from fedlada.paper.corrections import corrections
from fedlada.paper.main_runs import main_group, main_runs, stands_for
from fedlada.paper.setting import Setting
from fedlada.paper.target import Results, Shown, Target, final_table
from fedlada.workbench.campaign.curves import outcome_curves
from fedlada.workbench.campaign.request import Request

PAPER = "cifar10"
ALPHAS = (0.05, 0.1, 0.5, 1.0)
"""The paper shows "different alpha" without a list: our choice."""


def requests(setting: Setting) -> list[Request]:
    """SCAFFOLD, and FedLADA for each alpha."""
    goal = setting.goal(setting.scale.curve)
    needed = main_runs(setting, PAPER, ("scaffold",), goal)
    for alpha in ALPHAS:
        needed += setting.requests(_group(setting, alpha), PAPER, "fedlada", goal, hyper={"alpha": alpha})
    return needed


def _group(setting: Setting, alpha: float) -> str:
    return f"{main_group(setting, PAPER, 'fedlada')}, alpha {alpha:g}"


def show(setting: Setting, results: Results) -> Shown:
    """The two corrections on a small problem, accuracy, and consistency."""
    lines = {"SCAFFOLD": results[main_group(setting, PAPER, "scaffold")]}
    lines |= {f"FedLADA, alpha {alpha:g}": results[_group(setting, alpha)] for alpha in ALPHAS}
    place = stands_for(setting, PAPER)
    return Shown(
        (final_table(f"F7: SCAFFOLD and FedLADA on {place}", setting, lines, drift=True),),
        (
            corrections(),
            outcome_curves(f"F7: test accuracy on {place}", lines, "test_accuracy"),
            outcome_curves(f"F7: consistency, mean of ||x_iK - x^(t+1)||^2, on {place}", lines, "drift", log_y=True),
        ),
    )


TARGET = Target(
    name="F7", title="Consistency of SCAFFOLD and FedLADA", papers=(PAPER,), requests=requests, show=show, quick_seeds=2
)
