"""F5: FedAdam with amended clients against FedCM: the amendment does not suit an adaptive server."""

from __future__ import annotations

from fedlada.paper.main_runs import stands_for
from fedlada.paper.setting import Setting
from fedlada.paper.target import Results, Shown, Target, final_table
from fedlada.workbench.campaign.curves import outcome_curves
from fedlada.workbench.campaign.request import Request

PAPER = "tinyimagenet"
ALPHAS = (0.1, 0.3, 0.5, 1.0)
"""The paper says "different alpha" and names 1 alone, which is FedAdam: the others are our choice."""
SERVER_RATES = (0.1, 0.01, 0.001, 0.0001)
COMMON = {"alpha": 0.1, "server_lr": 0.1}


def requests(setting: Setting) -> list[Request]:
    """FedCM once, amended FedAdam for each alpha and for each rate of the server."""
    goal = setting.goal(setting.scale.curve)
    needed = setting.requests("FedCM", PAPER, "fedcm", goal)
    for name, hyper in {**_by_alpha(), **_by_rate()}.items():
        needed += setting.requests(name, PAPER, "fedadam_amended", goal, hyper=hyper)
    return needed


def _by_alpha() -> dict[str, dict[str, float]]:
    return {f"FedAdam(*), alpha {alpha:g}": {**COMMON, "alpha": alpha} for alpha in ALPHAS}


def _by_rate() -> dict[str, dict[str, float]]:
    return {f"FedAdam(*), server_lr {rate:g}": {**COMMON, "server_lr": rate} for rate in SERVER_RATES}


def show(setting: Setting, results: Results) -> Shown:
    """Two charts as in the paper."""
    place = stands_for(setting, PAPER)
    parts = {
        "by alpha, server_lr 0.1": {name: results[name] for name in ("FedCM", *_by_alpha())},
        "by the server's rate, alpha 0.1": {name: results[name] for name in ("FedCM", *_by_rate())},
    }
    return Shown(
        tuple(final_table(f"F5: amended FedAdam {what}, on {place}", setting, lines) for what, lines in parts.items()),
        tuple(outcome_curves(f"F5: amended FedAdam {what}", lines, "test_accuracy") for what, lines in parts.items()),
    )


TARGET = Target(
    name="F5", title="Amended FedAdam against FedCM", papers=(PAPER,), requests=requests, show=show, quick_seeds=1
)
