"""Accuracy under differential privacy on CIFAR-10, in the setting of pfl-research's benchmark.

    python benchmarks/private.py list
    python benchmarks/private.py run --data-dir data --out runs/private --device cuda --jobs 6 [--minutes 25]
    fedlada pack runs/private --out benchmarks/results/private_h200_202611.json
    python benchmarks/private.py table --write

1000 clients of 50 images, IID, 50 a round, batches of 10, one pass, 1500 rounds, the CNN with its dropout. Uploads are
clipped to 0.4; noise is that of 1000 clients a round out of a million (epsilon 2 and 8, delta 1e-6), as pfl has it.
Each method has four trials of 300 rounds on held-out data, with the noise of epsilon 2; the best goes into the runs of
three seeds. That is 7,200 rounds of trials, and 58,500 of results with FedAvg's without privacy. A run that was ended
goes on from its checkpoint. `--trial` takes a small model on the digits and few rounds, to see that everything works.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from many_runs import folder_name, identity, marks, write_between

from fedlada.federation.accounting import Sampling, least_noise
from fedlada.methods.recipes import hyper_parameters
from fedlada.runs.metrics import read_rows
from fedlada.training.history import History
from fedlada.workbench.campaign.archive import read_archive
from fedlada.workbench.campaign.store import diverged_in
from fedlada.workbench.experiment import Experiment
from fedlada.workbench.parallel import Job, run_jobs
from fedlada.workbench.report.table import Table

ARCHIVE = Path(__file__).parent / "results" / "private_h200_202611.json"
PFL_ARCHIVE = Path(__file__).parent / "results" / "private_pfl_h200_202611.json"
"""Runs of pfl itself, made by `private_pfl.py`."""
PAGE = Path(__file__).parents[1] / "docs" / "results" / "privacy.md"
MARKS = marks("python benchmarks/private.py table --write")
CLIP, DELTA, NOISE_COHORT, POPULATION = 0.4, 1e-6, 1000, 10**6
EPSILONS, SEEDS, ROUNDS, TRIAL_ROUNDS = (2.0, 8.0), (0, 1, 2), 1500, 300
LAST = 5
"""Evaluations at the end whose mean is a run's result."""
PRIVACIES = (*(f"epsilon {epsilon:g}" for epsilon in EPSILONS), "without privacy")
"""The columns of results."""

# The methods and their trials -----------------------------------------------------------------------------------------

ADAPTIVE = {"beta1": 0.0, "v_init": 1e-8}
FLAT = {**ADAPTIVE, "power": 0.125}


@dataclass(frozen=True)
class Entry:
    """A method as the page shows it, with its four trials."""

    name: str
    method: str
    hyper: Mapping[str, Any]
    trials: Sequence[Mapping[str, Any]]
    """Values that differ: `lr`, hyperparameters, and `scale` of the second moment in the clipped upload."""


def rates(*values: float, **others: Any) -> list[dict[str, Any]]:
    return [{"lr": value, **others} for value in values]


ENTRIES = [
    Entry("FedAvg", "fedavg", {}, rates(0.03, 0.1, 0.2, 0.4)),
    Entry("FedCM", "fedcm", {"alpha": 0.1}, rates(0.03, 0.1, 0.2, 0.4)),
    Entry(
        "FedAdam",
        "fedadam",
        {"tau": 1e-3},
        [{"lr": 0.1, "server_lr": value} for value in (1e-3, 3e-3, 1e-2, 3e-2)],
    ),
    Entry(
        "LocalAdam, second moment released",
        "localadam",
        ADAPTIVE,
        [*rates(1e-3, 5e-3, scale=10), *rates(1e-3, 5e-3, scale=100)],
    ),
    Entry(
        "FedLADA, second moment released",
        "fedlada",
        {**FLAT, "alpha": 0.1},
        [*rates(0.02, 0.06, scale=10), *rates(0.02, 0.06, scale=100)],
    ),
    Entry(
        "FedLADA, second moment reset",
        "fedlada",
        {**FLAT, "alpha": 0.1, "second_moment": "reset"},
        rates(0.01, 0.02, 0.04, 0.08),
    ),
]


@cache
def noise(epsilon: float) -> float:
    """The noise multiplier of the whole run; trials, which are shorter, have the same."""
    return least_noise(Sampling(NOISE_COHORT, POPULATION, by_coins=True), ROUNDS, epsilon, DELTA)


@dataclass(frozen=True)
class Run:
    """One run of a method."""

    entry: Entry
    values: Mapping[str, Any]
    epsilon: float | None
    """None: without privacy, without clipping too."""
    seed: int = 0
    is_trial: bool = False

    @property
    def key(self) -> str:
        kind = "trial" if self.is_trial else f"seed {self.seed}"
        return f"{self.entry.name}/{json.dumps(dict(self.values))}/{self.epsilon}/{kind}"

    @property
    def metric(self) -> str:
        return "validation_accuracy" if self.is_trial else "test_accuracy"

    def experiment(self, **changes: Any) -> Experiment:
        own = {name: value for name, value in self.values.items() if name not in ("lr", "scale")}
        scale = f":v={self.values['scale']:g}" if "scale" in self.values else ""
        private: dict[str, Any] = {} if self.epsilon is None else {
            "combiner": f"private:{CLIP:g}{scale}",
            "noise_multiplier": noise(self.epsilon),
            "target_epsilon": self.epsilon,
            "target_delta": DELTA,
            "noise_cohort": NOISE_COHORT,
            "noise_population": POPULATION,
        }  # fmt: skip
        rounds = TRIAL_ROUNDS if self.is_trial else ROUNDS
        settings: dict[str, Any] = {
            "dataset": "cifar10",
            "model": "pfl-cnn",
            "augment": "none",
            "partition": "iid",
            "num_clients": 1000,
            "cohort_size": 50,
            "batch_size": 10,
            "local_steps": 5,
            "lr_decay": 1.0,
            "rounds": rounds,
            "eval_every": max(1, rounds // 30),
            "validation": 0.1 if self.is_trial else 0.0,
            "checkpoint_every": 10**6,
            "checkpoint_minutes": 2.0,
        }
        return Experiment(
            method=self.entry.method,
            hyper={**hyper_parameters(self.entry.method), **self.entry.hyper, **own},
            lr=self.values["lr"],
            seed=self.seed,
            **{**settings, **private, **changes},
        )


def trials_of(entry: Entry) -> list[Run]:
    return [Run(entry, values, EPSILONS[0], is_trial=True) for values in entry.trials]


def results_of(entry: Entry, values: Mapping[str, Any]) -> list[Run]:
    """All seeds of the chosen values under each epsilon; of the first method also without privacy."""
    epsilons = (*EPSILONS, None) if entry is ENTRIES[0] else EPSILONS
    return [Run(entry, values, epsilon, seed) for epsilon in epsilons for seed in SEEDS]


# Their outcomes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Outcome:
    """A run as far as it went."""

    run: Run
    history: History
    diverged: bool = False

    def is_settled(self, rounds: int) -> bool:
        return self.diverged or len(self.history) >= rounds

    @property
    def accuracy(self) -> float | None:
        """The mean of the last evaluations; None where it diverged or is missing."""
        values = self.history.measured(self.run.metric)[1][-LAST:]
        return statistics.mean(values) if values and not self.diverged else None


Find = Callable[[Run], Outcome]


def in_folder(out: Path) -> Find:
    def find(run: Run) -> Outcome:
        folder = out / folder_name(run.key)
        rows = History(read_rows(folder / "metrics.jsonl"))
        return Outcome(run, rows, diverged_in(folder) is not None)

    return find


def in_archive(path: Path) -> Find:
    runs = {identity(run.config): run for run in read_archive(path).runs} if path.exists() else {}

    def find(run: Run) -> Outcome:
        found = runs.get(identity(json.loads(json.dumps(run.experiment().to_json()))))
        if found is None or (found.diverged is None and found.num_rounds < run.experiment().rounds):
            return Outcome(run, History())
        return Outcome(run, History(found.rows()), found.diverged is not None)

    return find


def anywhere(given: argparse.Namespace) -> Find:
    """In the archive, else in the folder."""
    archived, here = in_archive(given.archive), in_folder(given.out)
    if given.trial:
        return here

    def find(run: Run) -> Outcome:
        found = archived(run)
        return found if len(found.history) else here(run)

    return find


def chosen(entry: Entry, find: Find, rounds: int = TRIAL_ROUNDS) -> Run | None:
    """The best trial of a method, where all of them have ended."""
    outcomes = [find(run) for run in trials_of(entry)]
    if not all(one.is_settled(rounds) for one in outcomes):
        return None
    known = [one for one in outcomes if one.accuracy is not None]
    return max(known, key=lambda one: one.accuracy or 0.0).run if known else None


# Running them ---------------------------------------------------------------------------------------------------------


def run(given: argparse.Namespace) -> None:
    """All trials, then all results of what won, as far as the time goes."""
    deadline = None if given.minutes is None else time.time() + 60 * given.minutes
    rounds = SMALL_ROUNDS if given.trial else TRIAL_ROUNDS
    find = anywhere(given)
    run_all("trials", [one for entry in ENTRIES for one in trials_of(entry)], given, deadline)
    best = {entry.name: (entry, chosen(entry, find, rounds)) for entry in ENTRIES}
    for name, (_, one) in best.items():
        print(f"{name}: {'trials are missing' if one is None else dict(one.values)}", flush=True)
    wanted = [result for entry, one in best.values() if one is not None for result in results_of(entry, one.values)]
    # Seed by seed: where the time ends too soon, no method has more of them than another.
    run_all("results", sorted(wanted, key=lambda one: one.seed), given, deadline)


SMALL_ROUNDS = 6
SMALL = {"dataset": "digits", "model": "mlp", "num_clients": 20, "cohort_size": 4, "rounds": SMALL_ROUNDS}
SMALL |= {"local_steps": 2, "eval_every": 2, "data_dir": None, "device": "cpu"}


def run_all(what: str, runs: Sequence[Run], given: argparse.Namespace, deadline: float | None) -> None:
    find, jobs = anywhere(given), []
    for one in runs:
        experiment = one.experiment(device=given.device, data_dir=given.data_dir)
        if given.trial:
            experiment = replace(experiment, **SMALL)
        if not find(one).is_settled(experiment.rounds):
            jobs.append(Job(one.key, experiment.to_json(), given.out / folder_name(one.key), discards=True))
    print(f"{what}: {len(jobs)} of {len(runs)} runs to make", flush=True)
    failures = run_jobs(jobs, num_processes=given.jobs, deadline=deadline) if jobs else []
    for job, why in zip(jobs, failures, strict=True):
        if why:
            print(f"{job.label}: {why}", flush=True)


# The page -------------------------------------------------------------------------------------------------------------


def percent(values: Sequence[float | None]) -> str:
    """Mean and spread over seeds; how many are missing, where some are."""
    known = [100 * value for value in values if value is not None]
    if not known:
        return "-"
    spread = f" ± {statistics.stdev(known):.1f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.1f}{spread}" + (f" ({len(known)} of {len(values)})" * (len(known) < len(values)))


def result_table(find: Find, best: Mapping[str, Run | None]) -> Table:
    rows = [result_row(entry, find, best[entry.name]) for entry in ENTRIES]
    return Table("Test accuracy, percent", ("method", "chosen", *PRIVACIES), tuple(rows))


def result_row(entry: Entry, find: Find, won: Run | None) -> tuple[str, ...]:
    runs = [] if won is None else results_of(entry, won.values)
    cells = [percent([find(one).accuracy for one in runs if one.epsilon == epsilon]) for epsilon in (*EPSILONS, None)]
    return entry.name, "-" if won is None else text(won.values), *cells


def pfl_table(path: Path, find: Find, best: Mapping[str, Run | None]) -> Table | None:
    """The runs of pfl itself beside FedAvg's here; None where there are none of pfl."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in json.loads(path.read_text(encoding="utf-8")) if path.exists() else []:
        setting = record["setting"]
        if (setting["dataset"], setting["rounds"]) == ("cifar10", ROUNDS) and record["rows"]:
            images = ", its layout of images" if setting["layout"] == "pfl" else ""
            name = f"pfl {record['versions']['pfl']}{images}"
            groups.setdefault((name, f"lr {setting['lr']:g}"), []).append(record)
    rows = []
    for group, found in sorted(groups.items()):
        by_epsilon = [[one for one in found if one["setting"]["epsilon"] == epsilon] for epsilon in (*EPSILONS, None)]
        rows.append((*group, *map(pfl_cell, by_epsilon)))
    first = ENTRIES[0]
    ours = result_row(first, find, best[first.name])
    title = "pfl-research itself beside FedAvg here: test accuracy, percent"
    return Table(title, ("FedAvg of", "rate", *PRIVACIES), (*rows, ("fedlada", *ours[1:]))) if rows else None


def pfl_cell(records: Sequence[Mapping[str, Any]]) -> str:
    """Mean and spread over seeds; the last evaluation where none of the runs has ended."""
    last = [one["rows"][-1] for one in records]
    ended = [row["round"] >= ROUNDS for row in last]
    if records and not any(ended):
        furthest = max(last, key=lambda row: int(row["round"]))
        return f"{percent([furthest['test_accuracy']])} in round {furthest['round']}"
    means = [statistics.mean(row["test_accuracy"] for row in one["rows"][-LAST:]) for one in records]
    return percent([mean if is_ended else None for mean, is_ended in zip(means, ended, strict=True)])


def trial_table(find: Find, best: Mapping[str, Run | None]) -> Table:
    rows = []
    for entry in ENTRIES:
        for one in map(find, trials_of(entry)):
            won = best[entry.name]
            is_won = won is not None and won.key == one.run.key
            accuracy = "diverged" if one.diverged else percent([one.accuracy])
            rows.append((entry.name, text(one.run.values) + (", chosen" if is_won else ""), accuracy))
    return Table(
        "Trials: accuracy on held-out data in round 300, percent", ("method", "values", "accuracy"), tuple(rows)
    )


def text(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in values.items())


def tables(archive: Path, of_pfl: Path = PFL_ARCHIVE) -> str:
    find = in_archive(archive)
    best = {entry.name: chosen(entry, find) for entry in ENTRIES}
    made = (result_table(find, best), pfl_table(of_pfl, find, best), trial_table(find, best))
    return "\n".join(table.to_markdown() for table in made if table is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("list", "run", "table"))
    parser.add_argument("--out", type=Path, default=Path("runs/private"))
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=6, help="runs at a time")
    parser.add_argument("--minutes", type=float, help="after which runs are saved where they are")
    parser.add_argument("--trial", action="store_true", help="a small model on the digits")
    parser.add_argument("--archive", type=Path, default=ARCHIVE)
    parser.add_argument("--write", action="store_true", help="table: put them into the page")
    given = parser.parse_args()
    if given.what == "table":
        found = tables(given.archive)
        print(found)
        if given.write:
            write_between(PAGE, MARKS, found)
    elif given.what == "run":
        given.out.mkdir(parents=True, exist_ok=True)
        run(given)
    else:
        for one in (one for entry in ENTRIES for one in trials_of(entry)):
            print(f"{folder_name(one.key)}  {one.key}")


if __name__ == "__main__":
    main()
