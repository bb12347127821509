"""The table of the authors' simulator, made of the runs of `fedlada reproduce FLSIM --scale full`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import archived_runs

from fedlada.methods.recipes import RECIPES, hyper_parameters
from fedlada.paper.flsim import LAST, PAPER, ROUNDS, rows_of
from fedlada.paper.published import NAMES, SIMULATOR, SIMULATOR_SECONDS
from fedlada.workbench.campaign.archived_run import ArchivedRun
from fedlada.workbench.report.table import Table

ARCHIVE = "flsim_h200_202611.json.gz"
TARGETS = {0.6: (80, 84), 0.1: (75, 80)}
"""Accuracies in percent, by the concentration."""


def simulator_table(concentration: float) -> Table:
    """Accuracy beside the published one, and the rounds and gigabytes that the targets took."""
    rows, targets = [], TARGETS[concentration]
    for name, method, values in rows_of():
        run = _run(method, concentration, values)
        published = SIMULATOR.get(method, {}).get(concentration)
        cells = _cells(run, targets) if run else ("not run", *[""] * (2 + 2 * len(targets)))
        gradients = str(RECIPES[method]().gradients_per_step)
        rows.append((name, gradients, f"{published:.2f}" if published else "", *cells))
    heads = [head for one in targets for head in (f"rounds to {one} %", "GB")]
    levels = ("published best", "our best", f"last {LAST}", "clients' mean, best")
    return Table("", ("method", "gradients a step", *levels, *heads), tuple(rows))


def seconds_table() -> Table:
    """Seconds of a round: published, and of the methods that were measured alone."""
    rows = [
        (NAMES[method], f"{published:.2f}", f"{own['round_s']:.3f}", f"{published / own['round_s']:.0f}")
        for method, published in SIMULATOR_SECONDS.items()
        if (own := archived_runs.speed_of_methods().get(method))
    ]
    return Table("", ("method", "published, V100", "ours, H200", "ratio"), tuple(rows))


def _run(method: str, concentration: float, values: Mapping[str, Any]) -> ArchivedRun | None:
    own = {**values, "method": method, "concentration": concentration}
    hyper = {**hyper_parameters(method), **own.pop("hyper")}
    return archived_runs.ended(ARCHIVE, hyper, ROUNDS, dataset=PAPER, cohorts="bernoulli", seed=0, **own)


def _cells(run: ArchivedRun, targets: Sequence[float]) -> tuple[str, ...]:
    if run.diverged is not None:
        return (f"diverged in round {run.diverged[0] + 1}", *[""] * (2 + 2 * len(targets)))
    accuracy = run.measured["test_accuracy"]
    of_mean = run.measured.get("test_accuracy_of_mean")
    last = statistics.fmean(list(accuracy.values())[-LAST:])
    costs = [cell for target in targets for cell in _cost(run, target)]
    return (
        _percent(max(accuracy.values())),
        _percent(last),
        _percent(max(of_mean.values())) if of_mean else "",
        *costs,
    )


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


def _cost(run: ArchivedRun, target: float) -> tuple[str, str]:
    """Rounds and gigabytes, both ways, until an evaluation first reaches the target."""
    reached = next((round for round, value in run.measured["test_accuracy"].items() if 100 * value >= target), None)
    if reached is None:
        return f"> {run.num_rounds}", ""
    sent = sum(sum(run.every_round[name][:reached]) for name in ("bytes_up", "bytes_down"))
    return str(reached), f"{sent / 1e9:.0f}"
