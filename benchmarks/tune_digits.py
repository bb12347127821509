"""Searches each method's hyperparameters for the digits, with the same number of configurations for each.

A fifth of the training data is set aside as a validation split; the test set is never looked at. A configuration is
judged by its mean validation accuracy over all rounds (the area under its curve), averaged over the seeds. Prints the
table of all configurations and the best of each method as it stands in `src/fedlada/presets.py`.

    python benchmarks/tune_digits.py --grid 1 --out benchmarks/results/tuning1_digits_cpu_202611.md
    python benchmarks/tune_digits.py --grid 2 --out benchmarks/results/tuning2_digits_cpu_202611.md
    python benchmarks/tune_digits.py --grid 3 --out benchmarks/results/tuning3_digits_cpu_202611.md
    python benchmarks/tune_digits.py --grid 4 --out benchmarks/results/tuning4_digits_cpu_202611.md
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from fedlada.methods.recipes import hyper_parameters
from fedlada.training.simulation import TrainingDiverged
from fedlada.workbench.experiment import Experiment

ROUNDS, SEEDS, VALIDATION = 30, (100, 101), 0.2
SGD_RATES = (0.03, 0.1, 0.3, 1.0)
ADAPTIVE_RATES = (0.001, 0.003, 0.01, 0.03)

Grid = dict[str, tuple[Any, ...]]

# The first grids are wide; the others were laid around the best so far, once each, for every method alike.
GRIDS: dict[str, tuple[Grid, ...]] = {
    "fedavg": (
        {"lr": SGD_RATES, "weight_decay": (0.0, 1e-3, 1e-2)},
        {"lr": (0.05, 0.1, 0.2), "server_lr": (0.7, 1.0, 1.3, 1.6)},
        {"lr": (0.03, 0.04, 0.06, 0.08), "weight_decay": (0.0, 1e-3, 3e-3)},
        {"lr": (0.07, 0.08, 0.09, 0.12), "server_lr": (1.0, 1.15, 1.3)},
    ),
    "fedprox": (
        {"lr": SGD_RATES, "mu": (0.01, 0.1, 1.0)},
        {"lr": (0.05, 0.1, 0.2), "mu": (0.03, 0.1, 0.3, 1.0)},
        {"lr": (0.07, 0.1, 0.14), "mu": (0.2, 0.3, 0.5, 0.7)},
        {"lr": (0.08, 0.1, 0.12), "mu": (0.4, 0.6), "server_lr": (1.0, 1.2)},
    ),
    "scaffold": (
        {"lr": SGD_RATES, "correction": (0.5, 0.75, 1.0)},
        {"lr": (0.01, 0.03, 0.06, 0.1), "correction": (0.75, 1.0, 1.25)},
        {"lr": (0.045, 0.06, 0.08), "server_lr": (0.8, 1.0, 1.2, 1.4)},
        {"lr": (0.03, 0.035, 0.045), "server_lr": (1.1, 1.2, 1.3, 1.5)},
    ),
    "fedcm": (
        {"lr": SGD_RATES, "alpha": (0.05, 0.1, 0.3)},
        {"lr": (0.1, 0.2, 0.3, 0.6), "alpha": (0.2, 0.3, 0.5)},
        {"lr": (0.15, 0.2, 0.25), "alpha": (0.25, 0.3, 0.4, 0.6)},
        {"lr": (0.15, 0.2, 0.25, 0.3), "alpha": (0.15, 0.2, 0.25)},
    ),
    "fedadam": (
        {"lr": (0.03, 0.1, 0.3), "server_lr": (0.01, 0.03, 0.1, 0.3)},
        {"lr": (0.05, 0.1), "server_lr": (0.05, 0.1, 0.2), "tau": (1e-3, 1e-2)},
        {"lr": (0.03, 0.05, 0.07), "server_lr": (0.03, 0.05), "tau": (3e-4, 1e-3)},
        {"lr": (0.04, 0.05, 0.06), "server_lr": (0.02, 0.03), "tau": (6e-4, 2e-3)},
    ),
    "fedadam_amended": (
        {"lr": (0.1, 0.3), "server_lr": (0.01, 0.03, 0.1), "alpha": (0.1, 0.3)},
        {"lr": (0.1, 0.3), "server_lr": (0.02, 0.03, 0.05), "alpha": (0.3, 0.5)},
        {"lr": (0.05, 0.1), "server_lr": (0.05, 0.08, 0.12), "alpha": (0.5, 0.7)},
        {"lr": (0.03, 0.05, 0.07), "server_lr": (0.04, 0.06), "alpha": (0.7, 0.9)},
    ),
    "localadam": (
        {"lr": ADAPTIVE_RATES, "v_init": (1e-8, 1e-4, 1e-2)},
        {"lr": (0.002, 0.003, 0.005), "v_init": (1e-10, 1e-8, 1e-6, 1e-5)},
        {"lr": (0.002, 0.003, 0.004), "v_init": (1e-6, 3e-6), "beta1": (0.0, 0.9)},
        {"lr": (0.001, 0.0015, 0.002), "v_init": (1e-7, 1e-6), "beta1": (0.0, 0.5)},
    ),
    "fedlada": (
        {"lr": (0.003, 0.01, 0.03), "alpha": (0.05, 0.1), "v_init": (1e-4, 1e-2)},
        {"lr": (0.01, 0.03), "alpha": (0.1, 0.2, 0.3), "v_init": (1e-8, 1e-5)},
        {"lr": (0.005, 0.01), "alpha": (0.3, 0.5, 0.7), "v_init": (1e-8,), "beta1": (0.0, 0.9)},
        {"lr": (0.002, 0.003, 0.004), "alpha": (0.3, 0.5), "v_init": (1e-8, 1e-7), "beta1": (0.0,)},
    ),
}
BUDGET = 12


def score(task: tuple[str, dict[str, Any]]) -> float:
    """Mean validation accuracy over rounds and seeds; 0 for a run that diverged."""
    method, values = task
    torch.set_num_threads(1)
    # All of them: what is left out would be filled in with the best of an earlier search.
    hyper = {**hyper_parameters(method), **{name: value for name, value in values.items() if name != "lr"}}
    scores = []
    for seed in SEEDS:
        experiment = Experiment(
            method=method, lr=values["lr"], hyper=hyper, rounds=ROUNDS, seed=seed, device="cpu", validation=VALIDATION
        )
        try:
            scores.append(statistics.fmean(experiment.run().history["validation_accuracy"]))
        except TrainingDiverged:
            scores.append(0.0)
    return statistics.fmean(scores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the table here too")
    parser.add_argument("--methods", default=",".join(GRIDS))
    parser.add_argument(
        "--grid", type=int, choices=(1, 2, 3, 4), default=1, help="the wide one, or one laid around the best"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)  # before anything is measured
    tasks = [
        (method, dict(zip(grid, values, strict=True)))
        for method in arguments.methods.split(",")
        for grid in [GRIDS[method][arguments.grid - 1]]
        for values in itertools.product(*grid.values())
    ]
    assert all(sum(task[0] == method for task in tasks) == BUDGET for method in arguments.methods.split(","))
    start = time.time()
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        scores = []
        for task, value in zip(tasks, pool.map(score, tasks), strict=True):
            scores.append(value)
            print(f"[{len(scores)}/{len(tasks)}] {task[0]} {task[1]}: {value:.4f}", flush=True)
    lines = [
        f"# Hyperparameters for the digits, {time.strftime('%Y-%m-%d')}",
        "",
        f"`python benchmarks/tune_digits.py --grid {arguments.grid}`: {BUDGET} configurations a method, "
        f"{ROUNDS} rounds, seeds {SEEDS}, "
        f"torch {torch.__version__}, {platform.machine()}, {time.time() - start:.0f} s.",
        "Score: mean validation accuracy over all rounds. The best of each method is marked.",
        "",
        "| method | values | score |",
        "| --- | --- | --- |",
    ]
    for (method, values), value in zip(tasks, scores, strict=True):
        best = max(other for task, other in zip(tasks, scores, strict=True) if task[0] == method)
        text = ", ".join(f"{name} {number:g}" for name, number in values.items())
        lines.append(f"| {method} | {text} | " + (f"**{value:.4f}** |" if value == best else f"{value:.4f} |"))
    print("\n".join(lines))
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
