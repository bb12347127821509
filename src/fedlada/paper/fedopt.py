"""FEDOPT: server optimizers on CIFAR-10 and CIFAR-100, the table of Reddi et al. (2021)."""

from __future__ import annotations

from typing import Any

from fedlada.paper.published import FEDOPT, FEDOPT_VALUES
from fedlada.paper.rules import seeds_rule
from fedlada.paper.setting import Setting, name_of, stands_for
from fedlada.paper.target import Results, Shown, Target, percent, printed
from fedlada.workbench.campaign.curves import outcome_curves
from fedlada.workbench.campaign.over_seeds import best, final, over_seeds
from fedlada.workbench.campaign.request import Request
from fedlada.workbench.report.table import Table

PAPERS, METHODS = tuple(FEDOPT), tuple(FEDOPT["cifar10"])
ROUNDS, LAST = 4000, 100
"""Rounds of a run, and of the mean at its end."""
EVERY = 5
"""Rounds between evaluations of long runs; the published mean is over all rounds."""
THEIRS: dict[str, Any] = {
    "num_clients": 500,
    "cohort_size": 10,
    "batch_size": 20,
    "local_epochs": 1,
    "lr_decay": 1.0,
    "model": "resnet18-v2-gn",
    "augment": "crop",
    "crop_size": 24,
    "standardize": "image",
    "refill": False,
}
DECAY = 2e-4
"""Their code adds 1e-4 times the squared weights of all layers but the norms to the loss."""
DIVIDED: dict[str, dict[str, Any]] = {
    "cifar10": {"partition": "dirichlet", "concentration": 0.1},
    "cifar100": {"partition": "pachinko", "concentration": 0.1, "fine_concentration": 10.0},
}


def requests(setting: Setting) -> list[Request]:
    """Five server optimizers on each data set."""
    rounds = min(ROUNDS, setting.scale.curve) if setting.scale.name != "full" else ROUNDS
    needed = []
    for paper in setting.datasets(*PAPERS):
        # Data sets that stand for these have no groups of classes, and other image sizes.
        own = {**THEIRS, **DIVIDED[paper]} if setting.dataset(paper) == paper else {"lr_decay": 1.0}
        for method in setting.methods(*METHODS):
            lr, server_lr, tau = FEDOPT_VALUES[paper][method]
            hyper: dict[str, Any] = {"server_lr": server_lr, "weight_decay": DECAY, "clip_norm": None}
            hyper |= {} if tau is None else {"tau": tau}
            group = _group(setting, paper, method)
            changes = {**own, "lr": lr, "rounds": rounds, "eval_every": min(EVERY, rounds), "eval_train_every": None}
            needed += setting.requests(group, paper, method, setting.goal(rounds), hyper=hyper, **changes)
    return needed


def _group(setting: Setting, paper: str, method: str) -> str:
    return f"{name_of(method)} on {setting.title(paper)}, Reddi et al."


def show(setting: Setting, results: Results) -> Shown:
    """Published accuracies next to ours, a table and a chart for each data set."""
    tables, charts = [], []
    for paper in setting.datasets(*PAPERS):
        lines = {name_of(one): results[_group(setting, paper, one)] for one in setting.methods(*METHODS)}
        rows = tuple(
            (
                name_of(method),
                printed(FEDOPT[paper][method]),
                percent(over_seeds(lines[name_of(method)], final("test_accuracy", LAST // EVERY))),
                percent(over_seeds(lines[name_of(method)], best("test_accuracy"))),
            )
            for method in setting.methods(*METHODS)
        )
        notes = [
            f"Published: the mean accuracy of the last {LAST} of {ROUNDS} rounds. Ours: the mean of the last "
            f"{LAST // EVERY} evaluations, one every {EVERY} rounds. {seeds_rule(setting)}"
        ]
        if setting.dataset(paper) == paper:
            notes.append(
                "500 clients of 100 images, 10 a round, batch 20, one local epoch, no rate decay, no clipping, L2 on "
                "all parameters (theirs spares the norms); random 24-pixel crops and flips in training, middle "
                "crops in tests; each image is standardised by itself. ResNet-18 v2 with GroupNorm, at one "
                "resolution after its stem. CIFAR-10: Dirichlet 0.1. CIFAR-100: Pachinko allocation, 0.1 for "
                "superclasses and 10 within."
            )
        title = f"FEDOPT: server optimizers on {stands_for(setting, paper)}"
        tables.append(Table(title, ("method", "published %", "ours %", "our best %"), rows, tuple(notes)))
        charts.append(outcome_curves(f"FEDOPT: {setting.title(paper)}", lines, "test_accuracy"))
    return Shown(tuple(tables), tuple(charts))


SERVER_OPTIMIZERS = Target(
    name="FEDOPT",
    title="Server optimizers (Reddi et al. 2021)",
    papers=PAPERS,
    methods=METHODS,
    requests=requests,
    show=show,
    quick_seeds=1,
    is_of_the_paper=False,
)
