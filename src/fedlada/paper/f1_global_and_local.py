"""F1: an adaptive server against adaptive clients, on CIFAR-100."""

from __future__ import annotations

from fedlada.paper.main_runs import by_method, main_runs, stands_for
from fedlada.paper.setting import Setting
from fedlada.paper.target import Results, Shown, Target, final_table
from fedlada.workbench.campaign.curves import outcome_curves
from fedlada.workbench.campaign.request import Request

PAPER = "cifar100"
METHODS = ("fedavg", "fedadam", "localadam")


def requests(setting: Setting) -> list[Request]:
    """Three methods for as many rounds as the curves have."""
    return main_runs(setting, PAPER, METHODS, setting.goal(setting.scale.curve))


def show(setting: Setting, results: Results) -> Shown:
    """Accuracy and training loss."""
    lines, place = by_method(setting, results, PAPER, METHODS), stands_for(setting, PAPER)
    return Shown(
        (final_table(f"F1: FedAvg, FedAdam and LocalAdam on {place}", setting, lines),),
        (
            outcome_curves(f"F1: test accuracy on {place}", lines, "test_accuracy"),
            outcome_curves(f"F1: training loss on {place}", lines, "train_loss", log_y=True),
        ),
    )


TARGET = Target(
    name="F1", title="FedAvg, FedAdam and LocalAdam", papers=(PAPER,), methods=METHODS, requests=requests, show=show
)
