"""F6: LeNet with smooth activations, for which the theory's smoothness holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedlada.paper.main_runs import stands_for
from fedlada.paper.setting import Setting, name_of
from fedlada.paper.target import Results, Shown, Target, final_table
from fedlada.workbench.campaign.curves import outcome_curves
from fedlada.workbench.campaign.request import Request

PAPER = "cifar10"
METHODS = ("fedavg", "fedadam", "localadam", "fedlada")
CONCENTRATION = 0.3


def requests(setting: Setting) -> list[Request]:
    """Four methods with each activation."""
    setting = _own(setting)
    goal = setting.goal(setting.scale.lenet)
    changes: dict[str, Any] = {"rounds": setting.scale.lenet, "concentration": CONCENTRATION}
    return [
        request
        for activation, model in setting.scale.lenet_models.items()
        for method in setting.methods(*METHODS)
        for request in setting.requests(_group(activation, method), PAPER, method, goal, model=model, **changes)
    ]


def _own(setting: Setting) -> Setting:
    """The setting with the scale that suits convolutions."""
    return replace(setting, scale=setting.scale.for_lenet or setting.scale)


def _group(activation: str, method: str) -> str:
    return f"{name_of(method)}, LeNet with {activation}"


def show(setting: Setting, results: Results) -> Shown:
    """Accuracy and training loss for each activation."""
    setting = _own(setting)
    tables, charts, place = [], [], stands_for(setting, PAPER)
    for activation in setting.scale.lenet_models:
        lines = {name_of(method): results[_group(activation, method)] for method in setting.methods(*METHODS)}
        tables.append(final_table(f"F6: LeNet with {activation} on {place}, Dirichlet {CONCENTRATION}", setting, lines))
        charts.append(outcome_curves(f"F6: LeNet with {activation}, test accuracy", lines, "test_accuracy"))
        charts.append(outcome_curves(f"F6: LeNet with {activation}, training loss", lines, "train_loss", log_y=True))
    return Shown(tuple(tables), tuple(charts))


TARGET = Target(
    name="F6",
    title="LeNet with smooth activations",
    papers=(PAPER,),
    methods=METHODS,
    requests=requests,
    show=show,
    quick_seeds=1,
)
