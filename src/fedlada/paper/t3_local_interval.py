"""T3: FedLADA with more local work per round."""

from __future__ import annotations

from fedlada.paper.main_runs import stands_for
from fedlada.paper.published import LOCAL_INTERVAL
from fedlada.paper.rules import accuracy_rule
from fedlada.paper.setting import Setting
from fedlada.paper.target import Results, Shown, Target, percent, printed
from fedlada.workbench.campaign.curves import outcome_curves
from fedlada.workbench.campaign.over_seeds import best, best_round, over_seeds
from fedlada.workbench.campaign.request import Request
from fedlada.workbench.report.table import Table

PAPER = "tinyimagenet"


def requests(setting: Setting) -> list[Request]:
    """FedLADA for each number of local epochs."""
    goal = setting.goal(setting.scale.curve)
    return [
        request
        for epochs in LOCAL_INTERVAL
        for request in setting.requests(
            group_of(epochs), PAPER, "fedlada", goal, local_epochs=setting.scale.epochs[epochs]
        )
    ]


def group_of(epochs: int) -> str:
    """The runs with the paper's number of local epochs."""
    return f"FedLADA, K = {epochs}"


def show(setting: Setting, results: Results) -> Shown:
    """The best accuracy and its round."""
    rows = []
    for epochs, (accuracy, round) in LOCAL_INTERVAL.items():
        outcomes = results[group_of(epochs)]
        ours = over_seeds(outcomes, best("test_accuracy", setting.smooth))
        when = over_seeds(outcomes, best_round("test_accuracy", setting.smooth))
        local = str(setting.scale.epochs[epochs])
        rows.append((str(epochs), local, printed(accuracy), percent(ours), str(round), when.text(without="-")))
    rule = accuracy_rule(setting, f"Best test accuracy within {setting.goal(setting.scale.curve).rounds} rounds")
    columns = ("K in the paper", "local epochs here", "paper's best %", "our best %", "paper's round", "our round")
    table = Table(f"T3: local epochs of FedLADA on {stands_for(setting, PAPER)}", columns, tuple(rows), (rule,))
    return Shown((table,), figure(setting, results).charts)


def figure(setting: Setting, results: Results) -> Shown:
    """Accuracy and training loss against rounds: the paper's figure."""
    lines = {group_of(epochs): results[group_of(epochs)] for epochs in LOCAL_INTERVAL}
    place = setting.title(PAPER)
    return Shown(
        charts=(
            outcome_curves(f"FedLADA by local epochs on {place}: test accuracy", lines, "test_accuracy"),
            outcome_curves(f"FedLADA by local epochs on {place}: training loss", lines, "train_loss", log_y=True),
        )
    )


TARGET = Target(
    name="T3", title="Local epochs of FedLADA", papers=(PAPER,), requests=requests, show=show, quick_seeds=1
)
