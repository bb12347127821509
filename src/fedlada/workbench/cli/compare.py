"""`fedlada compare`: several methods over several seeds, with a table, a plot and a report page."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from fedlada.engines.processes import refuse_several
from fedlada.methods.recipes import RECIPES
from fedlada.plots.curves import curves
from fedlada.plots.draw import save_chart
from fedlada.runs.aside import only_results_left
from fedlada.runs.config import (
    TRAINED_ON,
    read_config,
    refuse_another,
    refuse_other_test,
    refuse_other_than_experiment,
)
from fedlada.runs.files import write_text
from fedlada.runs.metrics import read_rows
from fedlada.training.history import History
from fedlada.training.resolve import resolve_device
from fedlada.training.target import ACCURACY, Target, column_of
from fedlada.workbench.cli.flags import MethodCommand, build_experiment, experiment_flags, flags_of
from fedlada.workbench.cli.output import make_folder, new_folder, print_tables
from fedlada.workbench.cli.unused import refuse_unused
from fedlada.workbench.cli.values import UserPath, Words
from fedlada.workbench.experiment import Experiment
from fedlada.workbench.federation import with_known_cohort
from fedlada.workbench.labels import say_unused_classes
from fedlada.workbench.parallel import Job, run_jobs
from fedlada.workbench.progress import Chores
from fedlada.workbench.report.command import command_line
from fedlada.workbench.report.comparison import Comparison
from fedlada.workbench.report.listing import KnownRun
from fedlada.workbench.report.page import write_page
from fedlada.workbench.report.records import named, read_files
from fedlada.workbench.report.stored import say_what_is_replaced, write_command, write_tables
from fedlada.workbench.stored_config import data_digests
from fedlada.workbench.target import check_target
from fedlada.workbench.words import as_file_name

DEFAULT_TARGET = 0.9
"""Target accuracy for data with classes; for other data, final and best losses are compared."""


@click.command(cls=MethodCommand)
@click.option(
    "--methods",
    type=Words(choices=tuple(RECIPES), takes_own=True),
    default="fedavg,fedcm,fedlada",
    show_default=True,
    help="Comma-separated methods; your own as package.module:factory.",
)
@click.option("--seeds", type=Words(int), default="0,1,2", show_default=True, help="Comma-separated seeds.")
@click.option(
    "--messages",
    type=Words(),
    help="Compression of messages; a comma-separated list runs each method with each of them: float32,lean.",
)
@experiment_flags(without=("method", "seed", "messages"))
@click.option("--jobs", type=click.IntRange(min=1), help="Parallel runs; by default one per CPU core.")
@click.option("--out", type=UserPath(), help="The output folder; runs found there are not repeated.")
@click.option("--quiet", is_flag=True, help="Print no progress.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def compare(
    methods: list[str],
    seeds: list[int],
    messages: list[str] | None,
    jobs: int | None,
    out: Path | None,
    quiet: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Compare methods: rounds and megabytes to a target accuracy, as a table, a plot and a report page.

    A hyperparameter applies to the methods that have it. --target takes any metric, as in test_loss:0.1.

    \b
    Example:
      fedlada compare --methods fedavg,fedcm,fedlada --seeds 0,1 --rounds 30 --target 0.9 --out runs/compared
    """
    folder = out or new_folder("compare")
    rivals = _rivals(methods, messages)
    experiments = {
        (rival, seed): build_experiment(flags_of(method, methods, flags), method=method, seed=seed, messages=code)
        for rival, (method, code) in rivals.items()
        for seed in seeds
    }
    refuse_unused(flags, experiments.values())
    first = next(iter(experiments.values()))
    refuse_several("several runs")
    if first.validation:
        raise ValueError("a comparison is on the test set, which --validation leaves out: use `fedlada sweep`")
    resolve_device(first.device)
    with Chores(quiet=quiet or as_json) as bars:
        # Before anything is written: report missing data, and decode image files here instead of in workers.
        source = first.load_data(bars)
        experiments = {key: with_known_cohort(one, lambda: source) for key, one in experiments.items()}
        first = next(iter(experiments.values()))
        first.build_cohorts(source)
    if not quiet:
        say_unused_classes(first, source)
    if source.test is None and first.client_test is None:
        raise ValueError(f"a comparison is on the test set, and {first.dataset} returns none: use `fedlada sweep`")
    check_target(list(experiments.values()), source)
    target = Target(ACCURACY, DEFAULT_TARGET) if source.has_classes else None
    if first.target is not None:
        target = Target.parse(first.target)
    elif target is not None and flags["config"] is None:
        flags["target"] = target.value
        experiments = {key: replace(one, target=target.value) for key, one in experiments.items()}
    places = {(rival, seed): folder / f"{as_file_name(rival)}-seed{seed}" for rival, seed in experiments}
    # Before anything is written: a table with other settings would be overwritten.
    begun = {key: place for key, place in places.items() if (place / "config.json").exists()}
    digests = data_digests(source, first.build_evaluation(source)) if begun else {}
    stored = {key: _stored_rounds(place, experiments[key], digests) for key, place in begun.items()}
    make_folder(folder)
    asked = {"methods": methods, "seeds": seeds, "messages": messages, **flags}
    command = command_line("compare", asked.items())
    if not quiet:
        say_what_is_replaced(folder, command)
    if not quiet and not as_json:
        print(f"{len(experiments)} runs of {first.rounds} rounds on {first.dataset}, in {folder}", file=sys.stderr)
    all_jobs = [
        Job(f"{rival}, seed {seed}", experiment.to_json(), places[rival, seed])
        for (rival, seed), experiment in experiments.items()
    ]
    # What is left of them is all that a comparison reads.
    finished = {key for key, rounds in stored.items() if only_results_left(places[key], rounds, first.rounds)}
    needed = [job for key, job in zip(experiments, all_jobs, strict=True) if key not in finished]
    reasons = iter(run_jobs(needed, num_processes=jobs, quiet=quiet or as_json) if needed else ())
    failures = ["" if key in finished else next(reasons) for key in experiments]
    found = {key: read_rows(place / "metrics.jsonl") for key, place in places.items()}
    # A run may be longer from an earlier comparison: only runs of equal length are comparable.
    histories = {rival: [History(found[rival, seed][: first.rounds]) for seed in seeds] for rival in rivals}
    baseline = next((rival for rival, (method, _) in rivals.items() if method == "fedavg"), next(iter(rivals)))
    failed = {key: why for key, why in zip(experiments, failures, strict=True) if why}
    if not quiet and not as_json:
        unchanged = {key for key, rounds in stored.items() if key not in failed and rounds == len(found[key])}
        loaded = [job.label for key, job in zip(experiments, all_jobs, strict=True) if key in unchanged]
        _say_what_was_loaded(loaded, len(all_jobs), folder)
    metric = target.metric if target is not None and isinstance(first.target, str) else None
    value = None if target is None else target.value
    comparison = Comparison(histories, value, baseline=baseline, seeds=seeds, failures=failed, metric=metric)
    _write(folder, comparison, first, command)
    begun = {key: place for key, place in places.items() if (place / "config.json").exists()}
    runs = named([read_files(KnownRun(place, key[0], first.rounds)) for key, place in begun.items()])
    title = f"{', '.join(methods)} on {first.dataset}"
    write_page(folder / "report.html", title=title, runs=runs, tables=[comparison.to_table()], command=command)
    if as_json:
        print(json.dumps(_as_json(comparison, folder)))
    else:
        print_tables([comparison.to_table()], end="")
        print(f"in {folder}: report.html, comparison.png, table.md, table.csv, table.tex and a folder for each run")
    for job, why in zip(all_jobs, failures, strict=True):
        if why:
            print(f"fedlada: {job.label}: {why}", file=sys.stderr)
    if any(failures):
        raise click.exceptions.Exit(1)


def _rivals(methods: list[str], messages: list[str] | None) -> dict[str, tuple[str, str | None]]:
    """The entries by name: the methods, each with each compression setting if there are several."""
    if messages is None or len(messages) == 1:
        return {method: (method, messages[0] if messages else None) for method in methods}
    return {f"{method} {code}": (method, code) for method in methods for code in messages}


def _stored_rounds(place: Path, experiment: Experiment, digests: dict[str, Any]) -> int:
    """The number of stored rounds; refuses a run with other settings or other data, and damaged metrics."""
    refuse_other_than_experiment(place)
    config, ours = read_config(place), digests[TRAINED_ON]
    # A folder has digests that the data alone do not give; earlier versions stored none.
    stored = config.get(TRAINED_ON)
    theirs = {name: stored.get(name) for name in ours} if isinstance(stored, dict) else ours
    both = {**Experiment.from_json(config).to_json(), TRAINED_ON: theirs}, {**experiment.to_json(), TRAINED_ON: ours}
    refuse_another(place, *(json.loads(json.dumps(one)) for one in both))
    refuse_other_test(place, config, digests)
    return len(read_rows(place / "metrics.jsonl"))


def _say_what_was_loaded(loaded: list[str], num_runs: int, folder: Path) -> None:
    """One line about the runs of an earlier comparison, if there are any."""
    if len(loaded) == num_runs:
        print(f"fedlada: all {num_runs} runs were loaded from {folder}, none was trained", file=sys.stderr)
    elif loaded:
        print(f"fedlada: loaded, not trained: {'; '.join(loaded)}", file=sys.stderr)


def _write(folder: Path, comparison: Comparison, experiment: Experiment, command: str) -> None:
    table = comparison.to_table()
    write_text(folder / "table.md", table.to_markdown())
    write_text(folder / "table.tex", table.to_latex())
    write_text(folder / "table.csv", comparison.to_csv())
    write_tables(folder, [table])
    write_command(folder, command)
    full = experiment.resolved()
    title = f"{full.dataset}, {full.cohort_size} of {full.num_clients or 'all'} clients a round"
    goals = [] if comparison.target is None else [comparison.target]
    try:
        by_rounds, by_bytes = (
            curves(comparison.runs, column_of(comparison.compared), against=against, title=own, targets=goals)
            for against, own in (("rounds", title), ("megabytes", "by traffic of all clients"))
        )
        save_chart(by_rounds, folder / "comparison", ["png"], beside=[by_bytes])
    except ModuleNotFoundError as error:
        print(f"fedlada: no picture: {error}", file=sys.stderr)


def _as_json(comparison: Comparison, folder: Path) -> dict[str, Any]:
    name = comparison.short.replace(" ", "_")
    return {
        "metric": column_of(comparison.compared),
        "target": comparison.target,
        "folder": str(folder),
        "methods": {
            method: {
                "rounds_to_target": comparison.rounds_to_target(method),
                "bytes_to_target": comparison.bytes_to_target(method),
                "speed_up": comparison.speed_up(method),
                f"final_{name}": comparison.final_accuracies(method),
                f"best_{name}": comparison.best_accuracies(method),
                "failures": {str(seed): why for (name, seed), why in comparison.failures.items() if name == method},
            }
            for method in comparison.runs
        },
    }
