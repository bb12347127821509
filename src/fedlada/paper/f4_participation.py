"""F4: FedLADA with more clients a round."""

from __future__ import annotations

import math

from fedlada.paper.main_runs import stands_for
from fedlada.paper.setting import Setting
from fedlada.paper.target import Results, Shown, Target, final_table
from fedlada.workbench.campaign.curves import outcome_curves
from fedlada.workbench.campaign.request import Request

PAPER = "cifar10"
SHARES = (0.05, 0.1, 0.2, 0.5)


def requests(setting: Setting) -> list[Request]:
    """FedLADA for each share of active clients."""
    goal = setting.goal(setting.scale.curve)
    num_clients = setting.experiment(PAPER, "fedlada").resolved().num_clients
    assert num_clients is not None
    return [
        request
        for share in SHARES
        for request in setting.requests(
            _group(share), PAPER, "fedlada", goal, cohort_size=max(1, math.floor(share * num_clients + 0.5))
        )
    ]


def _group(share: float) -> str:
    return f"{100 * share:g} % of the clients"


def show(setting: Setting, results: Results) -> Shown:
    """Accuracy and training loss."""
    lines, place = {_group(share): results[_group(share)] for share in SHARES}, stands_for(setting, PAPER)
    return Shown(
        (final_table(f"F4: FedLADA by participation on {place}", setting, lines),),
        (
            outcome_curves(f"F4: test accuracy on {place}", lines, "test_accuracy"),
            outcome_curves(f"F4: training loss on {place}", lines, "train_loss", log_y=True),
        ),
    )


TARGET = Target(
    name="F4", title="FedLADA by participation", papers=(PAPER,), requests=requests, show=show, quick_seeds=1
)
