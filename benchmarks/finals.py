"""The finals of `docs/results/protocol.md`: the winner of each method's search on new seeds and the test data.

    python benchmarks/finals.py list
    python benchmarks/finals.py run --data-dir data --out runs/finals --jobs 8 [--seeds 10,11] [--minutes 15]
    fedlada pack runs/finals --out benchmarks/results/finals_h200_202611.json
    python benchmarks/finals.py table --write

Runs go to the protocol's last round on all training data, seed by seed, so that no method has more seeds than another.
With `--far` they go on to that of the best three methods, which `--only` names; with `--printed` they have the paper's
values.
`--trial` takes a small model on the digits, to see that everything works.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Protocol

import search
from archived_runs import cell, speed_of_methods
from many_runs import Kept, folder_name, identity, options, show

from fedlada.methods.recipes import RECIPES
from fedlada.paper.published import NAMES
from fedlada.plots.interval import interval
from fedlada.runs.metrics import read_rows
from fedlada.training.history import History
from fedlada.workbench.campaign.archive import read_archive
from fedlada.workbench.campaign.request import Goal, moving_average
from fedlada.workbench.campaign.store import diverged_in
from fedlada.workbench.experiment import Experiment
from fedlada.workbench.parallel import Job, run_jobs
from fedlada.workbench.report.table import Table, spread

COMMAND = "python benchmarks/finals.py table"
KEPT = {
    "cifar100": Kept.at("finals_h200_202611.json", "finals.md", f"{COMMAND} --write"),
    "cifar10": Kept.at("finals_cifar10_h200_202611.json", "finals-cifar10.md", f"{COMMAND} --dataset cifar10 --write"),
}
"""By data set."""
BESIDE = ("fedlada", "fedcm", "fedlada_sam", "mofedsam")
"""Methods whose differences from the others are shown."""
SEEDS = (10, 11, 12, 13, 14)


@dataclass(frozen=True)
class Shape:
    """How long the finals of a data set are, and what is shown of them."""

    rounds: int
    seeds: tuple[int, ...]
    targets: tuple[float, ...]
    """T6's and T1's."""
    steps: int | None = None
    """Local steps of a round, where the time of one was measured."""

    @property
    def shown(self) -> tuple[int, ...]:
        """Rounds whose accuracy is shown."""
        return (600, 900, 1200, self.rounds) if self.rounds > 600 else (100, 300, self.rounds)


SHAPES = {
    "cifar100": Shape(600, SEEDS, (0.40, 0.45, 0.51), steps=20),
    "cifar10": Shape(600, SEEDS, (0.70, 0.80, 0.84), steps=50),
    "tinyimagenet": Shape(400, SEEDS[:3], (0.28, 0.35, 0.38)),
}
FAR = {name: replace(SHAPES[name], rounds=1500, seeds=SEEDS[:3]) for name in ("cifar100", "cifar10")}
"""Of the best three methods."""
OWN = SHAPES[search.DATASET]
"""Of the data set whose tables stand on the page."""


class Find(Protocol):
    """The history of a method with a seed, as far as it was run; `far` is the longer run."""

    def __call__(self, method: str, seed: int, *, far: bool = False) -> History: ...


# The runs -------------------------------------------------------------------------------------------------------------


@cache
def winners(dataset: str = search.DATASET) -> dict[str, search.Trial]:
    """By method, from the search's archive."""
    found = {method: search.winner(search.outcomes(method, dataset)) for method in search.EVERY}
    return {method: one.trial for method, one in found.items() if one is not None}


def printed(dataset: str = search.DATASET) -> dict[str, search.Trial]:
    """The paper's values, of the paper's methods."""
    return {method: search.trials(method, dataset)[0] for method in search.SPACES}


def key(trial: search.Trial, seed: int, rounds: int) -> str:
    longer = "" if rounds == SHAPES[trial.dataset].rounds else f"/{rounds}"
    kind = "" if trial == winners(trial.dataset).get(trial.method) else "/printed"
    return f"finals/{trial.dataset}/{trial.method}/{seed}{longer}{kind}"


def experiment(trial: search.Trial, seed: int) -> Experiment:
    return trial.experiment(seed=seed, rounds=SHAPES[trial.dataset].rounds, validation=0.0)


def run(chosen: Mapping[str, search.Trial], seeds: Sequence[int], rounds: int, given: argparse.Namespace) -> None:
    """Seed by seed, as far as the time goes."""
    deadline = None if given.minutes is None else time.time() + 60 * given.minutes
    jobs = [job(trial, seed, rounds, given) for seed in seeds for trial in chosen.values()]
    missing = [
        one for one in jobs if len(read_rows(one.folder / "metrics.jsonl")) < rounds and not diverged_in(one.folder)
    ]
    print(f"{len(missing)} of {len(jobs)} runs to make", flush=True)
    failures = run_jobs(missing, num_processes=given.jobs, deadline=deadline) if missing else []
    for one, why in zip(missing, failures, strict=True):
        if why:
            print(f"{one.folder.name}: {why}", flush=True)


def job(trial: search.Trial, seed: int, rounds: int, given: argparse.Namespace) -> Job:
    made = replace(experiment(trial, seed), rounds=rounds, device=given.device, data_dir=given.data_dir)
    if given.trial:
        small = {"num_clients": 20, "cohort_size": 2, "local_steps": 1, "data_dir": None, "augment": "none"}
        made = replace(made, dataset="digits", model="mlp", **small)
    name = key(trial, seed, rounds)
    return Job(name, made.to_json(), given.out / folder_name(name), (Goal(made.rounds),), True)


# The page -------------------------------------------------------------------------------------------------------------


def in_archive(path: Path, chosen: Mapping[str, search.Trial]) -> Find:
    runs = {(identity(run.config), run.config["rounds"]): run for run in read_archive(path).runs}

    def find(method: str, seed: int, *, far: bool = False) -> History:
        config = json.loads(json.dumps(experiment(chosen[method], seed).to_json()))
        rounds = FAR[config["dataset"]].rounds if far else config["rounds"]
        found = runs.get((identity(config), rounds))
        return History() if found is None else History(found.rows())

    return find


def smooth(history: History) -> tuple[list[int], list[float]]:
    """The mean of the five evaluations that end in each round."""
    rounds, values = history.measured("test_accuracy")
    return rounds[search.SMOOTH - 1 :], moving_average(values, search.SMOOTH)


def at(history: History, round: int) -> float | None:
    return dict(zip(*smooth(history), strict=True)).get(round)


def reached(history: History, target: float) -> int | None:
    """The first evaluation at which the mean of five is at the target."""
    return next((round for round, value in zip(*smooth(history), strict=True) if value >= target), None)


def several(values: Sequence[float | None], digits: int) -> str:
    """Mean and standard deviation; "k of n" where not every seed has one."""
    known = [one for one in values if one is not None]
    return spread(known, f".{digits}f") if known and len(known) == len(values) else f"{len(known)} of {len(values)}"


def accuracies(done: Mapping[str, Sequence[History]], chosen: Mapping[str, search.Trial], shape: Shape) -> Table:
    rows = []
    for method, own in done.items():
        means = [several([_percent(at(one, round)) for one in own], 2) for round in shape.shown]
        best = several([_percent(max(smooth(one)[1], default=None)) for one in own], 2)
        rows.append((NAMES[method], chosen[method].text(), str(len(own)), *means, best))
    columns = ("method", "values", "seeds", *(f"A({round})" for round in shape.shown), "best A")
    return Table("Test accuracy", columns, tuple(rows))


def speeds(done: Mapping[str, Sequence[History]], shape: Shape) -> Table:
    """Rounds to each target: by the mean of five evaluations, and by the first crossing."""
    rows = []
    for method, own in done.items():
        ends, cells = [len(one) for one in own], []
        for target in shape.targets:
            cells += [cell([reached(one, target) for one in own], ends)]
            cells += [cell([one.rounds_to(target) for one in own], ends)]
        rows.append((NAMES[method], *cells))
    heads = [head for one in shape.targets for head in (f"{100 * one:g} %", f"{100 * one:g} %, first crossing")]
    return Table("Rounds to a test accuracy", ("method", *heads), tuple(rows))


def costs(done: Mapping[str, Sequence[History]], shape: Shape) -> Table:
    """Gradients, gigabytes and seconds to each target.

    Rounds times the gradients of a step, all bytes both ways, and the local steps of all clients on an H200.
    """
    rows = []
    for method, own in done.items():
        gradients, cells = RECIPES[method]().gradients_per_step, []
        seconds = speed_of_methods().get(method, {}).get("step_ms", math.nan) * (shape.steps or math.nan) / 1000
        for target in shape.targets:
            ends = [reached(one, target) for one in own]
            sent = [None if end is None else _gigabytes(one[:end]) for one, end in zip(own, ends, strict=True)]
            cells += [several([None if end is None else gradients * end for end in ends], 0), several(sent, 0)]
            known = "not measured" if math.isnan(seconds) else ""
            cells.append(known or several([None if end is None else seconds * end for end in ends], 0))
        rows.append((NAMES[method], str(gradients), *cells))
    heads = [head for one in shape.targets for head in (f"gradients to {100 * one:g} %", "GB", "s")]
    return Table("Gradients, bytes and seconds to a test accuracy", ("method", "gradients a step", *heads), tuple(rows))


def _gigabytes(rows: Sequence[Mapping[str, float]]) -> float:
    return sum(row["bytes_up"] + row["bytes_down"] for row in rows) / 1e9


def differences(done: Mapping[str, Sequence[History]], beside: str = "fedlada", shape: Shape = OWN) -> Table:
    """One method minus each other, with the 95 % interval of the mean; all methods run their seeds in one order."""
    rows = []
    for method in (one for one in done if one != beside):
        cells = []
        for round in shape.shown:
            pairs = [(at(a, round), at(b, round)) for a, b in zip(done[beside], done[method], strict=False)]
            points = [100 * (a - b) for a, b in pairs if a is not None and b is not None]
            cells.append(_interval(points))
        rows.append((NAMES[method], *cells))
    columns = ("method", *(f"A({one})" for one in shape.shown))
    return Table(f"{NAMES[beside]} minus each, in points", columns, tuple(rows))


def _interval(points: Sequence[float]) -> str:
    if len(points) < 2:
        return f"{points[0]:+.2f}" if points else "-"
    found = interval(points)
    return f"{statistics.fmean(points):+.2f} ({found.low:+.2f} to {found.high:+.2f})"


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def tables(archive: Path, dataset: str = search.DATASET) -> str:
    """All of them as Markdown; two methods are compared by the seeds that both have run."""
    chosen, shape = winners(dataset), SHAPES[dataset]
    find = in_archive(archive, chosen)
    runs = {method: [find(method, seed) for seed in shape.seeds] for method in chosen}
    done = as_far_as(runs, shape)
    without = [NAMES[method] for method, own in runs.items() if any(map(len, own)) and method not in done]
    beside = [differences(done, one, shape) for one in BESIDE if one in done]
    shown = [accuracies(done, chosen, shape), speeds(done, shape), costs(done, shape), *beside]
    seeds = FAR[dataset].seeds if dataset in FAR else ()
    far = {method: [find(method, seed, far=True) for seed in seeds] for method in chosen}
    longer = {method: [one for one in own if len(one) > shape.rounds] for method, own in far.items()}
    if longer := {method: own for method, own in longer.items() if own}:
        shown.append(replace(accuracies(longer, chosen, FAR[dataset]), title="Test accuracy of the longer runs"))
    shown += with_printed_values(archive, dataset)
    made = [table.to_markdown() for table in shown]
    return "\n".join([*made, *(f"No seed of {name} reached round {shape.rounds}.\n" for name in without)])


def with_printed_values(archive: Path, dataset: str) -> list[Table]:
    """The same of the paper's values, where a method has run with them that has another winner."""
    chosen, shape = printed(dataset), SHAPES[dataset]
    find = in_archive(archive, chosen)
    done = as_far_as({method: [find(method, seed) for seed in shape.seeds] for method in chosen}, shape)
    if all(chosen[method] == winners(dataset)[method] for method in done):
        return []
    tables = [accuracies(done, chosen, shape), *([differences(done, "fedlada", shape)] if "fedlada" in done else [])]
    return [replace(table, title=f"{table.title}, with the paper's values") for table in tables]


def as_far_as(runs: Mapping[str, Sequence[History]], shape: Shape) -> dict[str, list[History]]:
    """The runs that reached the last round, of the methods that have such."""
    done = {method: [one for one in own if len(one) >= shape.rounds] for method, own in runs.items()}
    return {method: own for method, own in done.items() if own}


def main() -> None:
    parser = options(__doc__, "runs/finals", search.EVERY, search.KEPT)
    parser.add_argument("--seeds", help="by default those of the protocol")
    parser.add_argument("--printed", action="store_true", help="run: the paper's values, where they are not the winner")
    parser.add_argument("--far", action="store_true", help="run: to the last round of the best three methods")
    given = parser.parse_args()
    best = winners(given.dataset)
    every = best
    if given.printed:
        every = {one: trial for one, trial in printed(given.dataset).items() if trial != best.get(one)}
    wanted = given.only or search.SPACES
    chosen = {one: trial for one, trial in every.items() if one in wanted}
    if given.what == "table":
        show(tables, KEPT, given, parser)
    elif given.what == "run":
        given.out.mkdir(parents=True, exist_ok=True)
        if given.far and given.dataset not in FAR:
            parser.error(f"--far is for {' and '.join(FAR)}")
        if given.far and given.only is None:
            parser.error("--far is for the best three methods: name them by --only")
        shape = (FAR if given.far else SHAPES)[given.dataset]
        seeds = [int(one) for one in given.seeds.split(",")] if given.seeds else shape.seeds
        run(chosen, seeds, shape.rounds, given)
    else:
        for method, trial in chosen.items():
            print(f"{method}: {trial.text()}")


if __name__ == "__main__":
    main()
