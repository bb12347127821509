"""T2: combinations of server and client optimizers, with and without the amendment."""

from __future__ import annotations

from fedlada.methods.local import TowardGlobalDirection
from fedlada.methods.recipes import RECIPES
from fedlada.paper.published import COMBINATIONS, COMBINATIONS_BASE
from fedlada.paper.rules import accuracy_rule
from fedlada.paper.setting import Setting, main_lines, name_of, stands_for
from fedlada.paper.target import Lines, Results, Shown, Target, each_once, of_lines, percent, points_above, printed
from fedlada.training.suggested import is_adaptive
from fedlada.workbench.campaign.curves import outcome_curves
from fedlada.workbench.campaign.over_seeds import final, over_seeds
from fedlada.workbench.report.table import Table

PAPER = "tinyimagenet"
METHODS = tuple(COMBINATIONS)


def _lines(setting: Setting) -> Lines:
    """Six combinations, for as many rounds as the curves."""
    return main_lines(setting, PAPER, METHODS, setting.goal(setting.scale.curve))


def _show(setting: Setting, results: Results) -> Shown:
    """Accuracy after the last round, and the distance to FedAvg."""
    lines = of_lines(_lines(setting), results)
    methods, last = setting.methods(*METHODS), final("test_accuracy", setting.smooth)
    figures = {method: over_seeds(lines[name_of(method)], last) for method in methods}
    rows = tuple(
        (
            name_of(method),
            *_parts(method),
            printed(COMBINATIONS_BASE + COMBINATIONS[method]),
            percent(figures[method]),
            f"{COMBINATIONS[method]:+.1f}",
            points_above(figures[method], figures.get("fedavg")),
        )
        for method in methods
    )
    rounds = setting.goal(setting.scale.curve).rounds
    columns = ("method", "server", "clients", "paper %", "ours %", "paper above FedAvg", "ours above FedAvg")
    rule = accuracy_rule(setting, f"Test accuracy after {rounds} rounds (the paper's: 1500)")
    table = Table(f"T2: combinations of optimizers on {stands_for(setting, PAPER)}", columns, rows, (rule,))
    return Shown((table,), (outcome_curves("T2: combinations of optimizers", lines, "test_accuracy"),))


def _parts(method: str) -> tuple[str, str]:
    """The optimizers of the server and of the clients, (+A) where the latter is amended."""
    recipe = RECIPES[method]()
    amended = any(isinstance(part, TowardGlobalDirection) for part in recipe.local)
    return type(recipe.server).__name__, ("Adam" if is_adaptive(method) else "SGD") + (" (+A)" if amended else "")


T2 = Target(
    name="T2",
    title="Combinations of optimizers",
    papers=(PAPER,),
    methods=METHODS,
    requests=lambda setting: each_once(_lines(setting)),
    show=_show,
)
