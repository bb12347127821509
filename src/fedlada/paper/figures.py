"""The figures that are drawn from runs, F1 to F7: their charts, and tables of the final values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedlada.paper.corrections import corrections
from fedlada.paper.published import DATASETS, SEVEN
from fedlada.paper.setting import Setting, main_group, main_lines, name_of, stands_for
from fedlada.paper.target import Lines, Results, Shown, Target, each_once, final_table, of_lines
from fedlada.paper.variants import by_alpha, by_epochs
from fedlada.plots.chart import Chart
from fedlada.workbench.campaign.curves import outcome_curves
from fedlada.workbench.report.table import Table

SERVER_OR_CLIENTS = ("fedavg", "fedadam", "localadam")
SHARES = (0.05, 0.1, 0.2, 0.5)
AMENDED_ALPHAS = (0.1, 0.3, 0.5, 1.0)
"""The paper says "different alpha" and names only 1, which is FedAdam; the others are our choice."""
SERVER_RATES = (0.1, 0.01, 0.001, 0.0001)
COMMON = {"alpha": 0.1, "server_lr": 0.1}
SMOOTH = ("fedavg", "fedadam", "localadam", "fedlada")
"""Compared on LeNet with smooth activations, for which the theory's smoothness holds."""
SMOOTH_CONCENTRATION = 0.3
ALPHAS = (0.05, 0.1, 0.5, 1.0)
"""The paper shows "different alpha" without a list: our choice."""


@dataclass(frozen=True)
class Panel:
    """A part of a figure: its table has the end of each line, each chart one metric of all lines."""

    title: str
    lines: Lines
    charts: Mapping[str, str]
    """Metrics by the titles of their charts."""
    beside: tuple[Chart, ...] = ()
    """Charts that need no runs."""


def figure(name: str, title: str, panels: Callable[[Setting], Sequence[Panel]], **others: Any) -> Target:
    """The target of a figure with these panels."""

    def show(setting: Setting, results: Results) -> Shown:
        tables: list[Table] = []
        charts: list[Chart] = []
        for panel in panels(setting):
            lines, metrics = of_lines(panel.lines, results), panel.charts
            tables.append(final_table(panel.title, setting, lines, drift="drift" in metrics.values()))
            charts += panel.beside
            charts += [
                outcome_curves(own, lines, metric, log_y=metric != "test_accuracy") for own, metric in metrics.items()
            ]
        return Shown(tuple(tables), tuple(charts))

    return Target(
        name=name,
        title=title,
        requests=lambda setting: each_once(*(panel.lines for panel in panels(setting))),
        show=show,
        **others,
    )


def _global_and_local(setting: Setting) -> list[Panel]:
    """An adaptive server against adaptive clients."""
    place = stands_for(setting, "cifar100")
    lines = main_lines(setting, "cifar100", SERVER_OR_CLIENTS, setting.goal(setting.scale.curve))
    return [Panel(f"F1: FedAvg, FedAdam and LocalAdam on {place}", lines, _accuracy_and_loss("F1", place))]


def _all_methods(setting: Setting) -> list[Panel]:
    panels = []
    for paper in setting.datasets(*DATASETS):
        place = stands_for(setting, paper)
        charts = dict(reversed(_accuracy_and_loss("F2", place).items()))
        lines = main_lines(setting, paper, SEVEN, setting.goal(setting.scale.curve))
        panels.append(Panel(f"F2: all methods on {place}", lines, charts))
    return panels


def _local_interval(setting: Setting) -> list[Panel]:
    lines, charts = by_epochs(setting)
    return [Panel("F3: FedLADA by local epochs", lines, charts)]


def _participation(setting: Setting) -> list[Panel]:
    """FedLADA for each share of active clients."""
    goal, place = setting.goal(setting.scale.curve), stands_for(setting, "cifar10")
    num_clients = setting.experiment("cifar10", "fedlada").resolved().num_clients
    assert num_clients is not None
    lines = {}
    for share in SHARES:
        name, size = f"{100 * share:g} % of the clients", max(1, math.floor(share * num_clients + 0.5))
        lines[name] = setting.requests(name, "cifar10", "fedlada", goal, cohort_size=size)
    return [Panel(f"F4: FedLADA by participation on {place}", lines, _accuracy_and_loss("F4", place))]


def _amended_server(setting: Setting) -> list[Panel]:
    """FedAdam with amended clients against FedCM: the amendment does not suit an adaptive server."""
    paper, goal = "tinyimagenet", setting.goal(setting.scale.curve)
    varied = {
        "by alpha, server_lr 0.1": ("alpha", AMENDED_ALPHAS),
        "by the server's rate, alpha 0.1": ("server_lr", SERVER_RATES),
    }
    panels = []
    for what, (name, values) in varied.items():
        lines = {"FedCM": setting.requests("FedCM", paper, "fedcm", goal)}
        for value in values:
            own, hyper = f"FedAdam(*), {name} {value:g}", {**COMMON, name: value}
            lines[own] = setting.requests(own, paper, "fedadam_amended", goal, hyper=hyper)
        title = f"F5: amended FedAdam {what}"
        panels.append(Panel(f"{title}, on {stands_for(setting, paper)}", lines, {title: "test_accuracy"}))
    return panels


def _activations(setting: Setting) -> list[Panel]:
    setting = replace(setting, scale=setting.scale.for_lenet or setting.scale)
    place, rounds = stands_for(setting, "cifar10"), setting.scale.lenet
    changes: dict[str, Any] = {"rounds": rounds, "concentration": SMOOTH_CONCENTRATION}
    panels = []
    for activation, model in setting.scale.lenet_models.items():
        title, lines = f"LeNet with {activation}", {}
        for method in setting.methods(*SMOOTH):
            group = f"{name_of(method)}, {title}"
            lines[name_of(method)] = setting.requests(
                group, "cifar10", method, setting.goal(rounds), model=model, **changes
            )
        charts = {f"F6: {title}, test accuracy": "test_accuracy", f"F6: {title}, training loss": "train_loss"}
        panels.append(Panel(f"F6: {title} on {place}, Dirichlet {SMOOTH_CONCENTRATION}", lines, charts))
    return panels


def _consistency(setting: Setting) -> list[Panel]:
    """FedLADA's amendment against SCAFFOLD's correction: accuracy and client drift."""
    goal, place = setting.goal(setting.scale.curve), stands_for(setting, "cifar10")
    group = main_group(setting, "cifar10", "scaffold")
    lines = {"SCAFFOLD": setting.requests(group, "cifar10", "scaffold", goal)}
    lines |= {f"FedLADA, alpha {alpha:g}": own for alpha, own in by_alpha(setting, "cifar10", ALPHAS).items()}
    charts = {
        f"F7: test accuracy on {place}": "test_accuracy",
        f"F7: consistency, mean of ||x_iK - x^(t+1)||^2, on {place}": "drift",
    }
    return [Panel(f"F7: SCAFFOLD and FedLADA on {place}", lines, charts, (corrections(),))]


def _accuracy_and_loss(name: str, place: str) -> dict[str, str]:
    return {f"{name}: test accuracy on {place}": "test_accuracy", f"{name}: training loss on {place}": "train_loss"}


FIGURES = (
    figure("F1", "FedAvg, FedAdam and LocalAdam", _global_and_local, papers=("cifar100",), methods=SERVER_OR_CLIENTS),
    figure("F2", "Loss and accuracy of all methods", _all_methods, papers=DATASETS, methods=SEVEN),
    figure("F3", "FedLADA by local epochs", _local_interval, papers=("tinyimagenet",), quick_seeds=1),
    figure("F4", "FedLADA by participation", _participation, papers=("cifar10",), quick_seeds=1),
    figure("F5", "Amended FedAdam against FedCM", _amended_server, papers=("tinyimagenet",), quick_seeds=1),
    figure("F6", "LeNet with smooth activations", _activations, papers=("cifar10",), methods=SMOOTH, quick_seeds=1),
    figure("F7", "Consistency of SCAFFOLD and FedLADA", _consistency, papers=("cifar10",), quick_seeds=2),
)
