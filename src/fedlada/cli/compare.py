"""`fedlada compare`: several methods over several seeds, with a table and a picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from fedlada.api import resolve_device
from fedlada.cli.bars import Bars
from fedlada.cli.flags import Words, all_hyper_parameters, build_experiment, experiment_flags
from fedlada.cli.output import make_folder, new_folder, print_table
from fedlada.experiment import Experiment, hyper_parameters
from fedlada.history import History
from fedlada.parallel import Job, run_jobs
from fedlada.recipes import RECIPES
from fedlada.report.comparison import COLUMNS, Comparison
from fedlada.runs.metrics import read_rows

DEFAULT_TARGET = 0.9


@click.command()
@click.option(
    "--methods",
    type=Words(choices=tuple(RECIPES)),
    default="fedavg,fedcm,fedlada",
    show_default=True,
    help="Methods, separated by commas.",
)
@click.option("--seeds", type=Words(int), default="0,1,2", show_default=True, help="Seeds, separated by commas.")
@experiment_flags(without=("method", "seed"))
@click.option("--jobs", type=click.IntRange(min=1), help="Runs at a time; by default one for each core of a CPU.")
@click.option("--out", type=click.Path(path_type=Path), help="Where all goes; what is there already is not run again.")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.option("--json", "as_json", is_flag=True, help="The figures as JSON on standard output.")
def compare(
    methods: list[str], seeds: list[int], jobs: int | None, out: Path | None, quiet: bool, as_json: bool, **flags: Any
) -> None:
    """Compare methods: rounds to a target accuracy, a table and a picture.

    A hyper-parameter applies to those methods that have it.

    \b
    Example:
      fedlada compare --methods fedavg,fedcm,fedlada --seeds 0,1 --rounds 30 --target 0.9 --out runs/compared
    """
    if flags["target"] is None and flags["config"] is None:
        flags["target"] = DEFAULT_TARGET
    folder = out or new_folder("compare")
    experiments = {
        (method, seed): build_experiment(_flags_of(method, methods, flags), method=method, seed=seed)
        for method in methods
        for seed in seeds
    }
    first = experiments[methods[0], seeds[0]]
    target = DEFAULT_TARGET if first.target is None else first.target
    resolve_device(first.device)
    with Bars(quiet=quiet or as_json) as bars:
        # Before anything is written: missing data is one sentence, and image files are decoded here and not by workers.
        first.build_cohorts(first.load_data(bars))
    make_folder(folder)
    if not quiet and not as_json:
        print(f"{len(experiments)} runs of {first.rounds} rounds on {first.dataset}, in {folder}", file=sys.stderr)
    all_jobs = [
        Job(f"{method}, seed {seed}", experiment.to_json(), folder / f"{method}-seed{seed}")
        for (method, seed), experiment in experiments.items()
    ]
    failures = run_jobs(all_jobs, num_processes=jobs, quiet=quiet or as_json)
    histories = {
        method: [History(read_rows(folder / f"{method}-seed{seed}" / "metrics.jsonl")) for seed in seeds]
        for method in methods
    }
    comparison = Comparison(histories, target, baseline="fedavg" if "fedavg" in methods else methods[0])
    _write(folder, comparison, first)
    if as_json:
        print(json.dumps(_as_json(comparison, folder)))
    else:
        _print(comparison, folder, len(seeds))
    for label, why in failures.items():
        print(f"fedlada: {label}: {why}", file=sys.stderr)
    if failures:
        raise click.exceptions.Exit(1)


def _flags_of(method: str, methods: list[str], flags: dict[str, Any]) -> dict[str, Any]:
    """The flags for one method; a hyper-parameter that none of the methods has is refused."""
    hyper = {name for name in all_hyper_parameters() if flags.get(name) is not None}
    nobody = sorted(name for name in hyper if not any(name in hyper_parameters(one) for one in methods))
    if nobody:
        raise ValueError(f"none of {', '.join(methods)} has the hyper-parameter {nobody[0]!r}")
    return {name: value for name, value in flags.items() if name not in hyper or name in hyper_parameters(method)}


def _write(folder: Path, comparison: Comparison, experiment: Experiment) -> None:
    (folder / "table.md").write_text(comparison.to_markdown(), encoding="utf-8")
    (folder / "table.csv").write_text(comparison.to_csv(), encoding="utf-8")
    try:
        from fedlada.report.plots import plot_histories

        full = experiment.resolved()
        title = f"{full.dataset}, {full.cohort_size} of {full.num_clients or 'all'} clients a round"
        figure = plot_histories(comparison.histories, metric="test_accuracy", target=comparison.target, title=title)
        figure.savefig(folder / "comparison.png", dpi=150)
    except ModuleNotFoundError as error:
        print(f"fedlada: no picture: {error}", file=sys.stderr)


def _print(comparison: Comparison, folder: Path, num_seeds: int) -> None:
    title = f"Accuracy target {comparison.target:g}, mean ± standard deviation over {num_seeds} seed(s)"
    print_table(COLUMNS, comparison.rows(), title=title)
    print(f"speed-up: rounds to the target, relative to {comparison.baseline}; ∞: not reached in the rounds run")
    print(f"in {folder}: comparison.png, table.md, table.csv and a folder for each run")


def _as_json(comparison: Comparison, folder: Path) -> dict[str, Any]:
    return {
        "target": comparison.target,
        "folder": str(folder),
        "methods": {
            method: {
                "rounds_to_target": comparison.rounds_to_target(method),
                "speed_up": comparison.speed_up(method),
                "best_accuracy": [history.best() for history in seeds],
            }
            for method, seeds in comparison.histories.items()
        },
    }
