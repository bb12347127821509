"""FLSIM: the table of the authors' simulator, ten methods on CIFAR-10 by heterogeneity."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from fedlada.paper.choices import values_of
from fedlada.paper.published import SIMULATOR, SIMULATOR_SECONDS
from fedlada.paper.rules import seeds_rule
from fedlada.paper.setting import Setting, name_of, stands_for
from fedlada.paper.target import Results, Shown, Target, each_once, of_lines, percent, printed
from fedlada.training.suggested import PUBLISHED, SGD_BASED
from fedlada.workbench.campaign.curves import outcome_curves
from fedlada.workbench.campaign.over_seeds import best, final, over_seeds
from fedlada.workbench.campaign.request import Outcome, Request
from fedlada.workbench.report.table import Table

PAPER, ROUNDS = "cifar10", 1000
CONCENTRATIONS = (0.6, 0.1)
"""The columns that are run, of the four published ones."""
ADAPTIVE = {"FedLADA, printed values": ("fedlada", "paper"), "FedLADA, searched values": ("fedlada", "earlier")}
"""Rows that the simulator's table does not have: the method and the preset."""
SECOND_VALUES = {"MoFedSAM, alpha 0.1": ("mofedsam", {"alpha": 0.1})}
"""Rows for values that are published as alternatives, without saying which runs had which."""
METHODS = (*SIMULATOR, "fedlada", "fedlada_sam")
LAST = 5
"""Evaluations in the mean at the end."""


def _lines(setting: Setting, concentration: float) -> dict[str, list[Request]]:
    """Each method with its published values, and FedLADA with its own, on one partition."""
    goal = setting.goal(min(ROUNDS, setting.scale.curve))
    same = {"concentration": concentration, "cohorts": "bernoulli", "eval_every": 1}
    return {
        name: setting.requests(f"{name}, Dirichlet {concentration:g}", PAPER, method, goal, **{**values, **same})
        for name, method, values in rows_of(setting.methods(*METHODS))
    }


def rows_of(chosen: Sequence[str] = METHODS) -> list[tuple[str, str, dict[str, Any]]]:
    """Name, method and values of every row."""
    rows = [(name_of(one), one, published_values(one)) for one in chosen if one in SIMULATOR]
    for name, (method, changed) in SECOND_VALUES.items():
        if method in chosen:
            values = published_values(method)
            rows.append((name, method, {**values, "hyper": {**values["hyper"], **changed}}))
    others = {**ADAPTIVE, "FedLADA with SAM": ("fedlada_sam", "earlier")}
    for name, (method, preset) in others.items():
        if method in chosen:
            found = values_of(preset, PAPER, PAPER, "fedlada")
            rows.append((name, method, {"lr": found.lr, "lr_decay": found.lr_decay, "hyper": found.hyper}))
    return rows


def published_values(method: str) -> dict[str, Any]:
    """The values of the simulator's table."""
    found = PUBLISHED.get(method, {})
    server = {"server_lr": 0.1} if method == "fedadam" else {}
    hyper = {"weight_decay": 1e-3, "clip_norm": 10.0, **server, **found.get("hyper", {})}
    return {**SGD_BASED, **found, "hyper": hyper}


def _show(setting: Setting, results: Results) -> Shown:
    """Published accuracies next to ours, a table and a chart for each partition."""
    found = {one: of_lines(_lines(setting, one), results) for one in CONCENTRATIONS}
    charts = (outcome_curves(f"FLSIM: Dirichlet {one:g}", own, "test_accuracy") for one, own in found.items())
    return Shown(tuple(_table(setting, own, one) for one, own in found.items()), tuple(charts))


def _table(setting: Setting, lines: Results, concentration: float) -> Table:
    rows = []
    for name, method, _ in rows_of(setting.methods(*METHODS)):
        outcomes = lines[name]
        accuracies = (best("test_accuracy"), final("test_accuracy", LAST), best("test_accuracy_of_mean"))
        seconds = over_seeds(outcomes, _seconds)
        rows.append(
            (
                name,
                printed(SIMULATOR.get(method, {}).get(concentration), 2),
                *(percent(over_seeds(outcomes, value), 2) for value in accuracies),
                printed(SIMULATOR_SECONDS.get(method), 2),
                seconds.text(3, without="-"),
            )
        )
    columns = ("method", "published best %", "our best %", f"our last {LAST} %", "best of the clients' mean %")
    notes = (
        f"Best of all evaluations, one after each of {setting.goal(min(ROUNDS, setting.scale.curve)).rounds} rounds, "
        f"as published; beside it the mean of the last {LAST}. {seeds_rule(setting)}",
        "Each client takes part by a coin of its own. Values as published: rate 0.1, times 0.998 a round (FedDyn "
        "0.9995), L2 1e-3, clipping at 10, rho 0.1 (FedGAMMA 0.01), mu 0.1, alpha 0.1 (MoFedSAM 0.05), server rate of "
        "FedAdam 0.1.",
        "The clients' mean is evaluated where the server's model is another. Published seconds are of a V100.",
    )
    title = f"FLSIM: the authors' simulator, Dirichlet {concentration:g}, on {stands_for(setting, PAPER)}"
    return Table(title, (*columns, "published s a round", "our s a round"), tuple(rows), notes)


def _seconds(outcome: Outcome) -> float | None:
    """The median round, without evaluations."""
    rows = outcome.history.rows
    return statistics.median(row["seconds"] for row in rows) if rows else None


FLSIM = Target(
    name="FLSIM",
    title="The authors' simulator",
    papers=(PAPER,),
    methods=METHODS,
    requests=lambda setting: each_once(*(_lines(setting, one) for one in CONCENTRATIONS)),
    show=_show,
    quick_seeds=1,
    is_of_the_paper=False,
)
