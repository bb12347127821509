"""The search of `docs/results/protocol.md`: equally many trials of each method, judged on held-out data.

    python benchmarks/search.py list [--dataset cifar10]
    python benchmarks/search.py run --data-dir data --out runs/search --jobs 9 [--only fedcm] [--minutes 12]
    fedlada pack runs/search --out benchmarks/results/search_h200_202611.json
    python benchmarks/search.py table --write

Stage one runs all trials to round 100, stage two the best third of each method to round 300. A run that was ended goes
on from its checkpoint. Clients of SCAFFOLD keep gigabytes, so its runs of stage two begin again and repeat stage one.
`--trial` takes a small model on the digits, to see that everything works. The test data are never read.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from many_runs import Kept, as_printed, folder_name, identity, options, show

from fedlada.paper.choices import values_of
from fedlada.paper.flsim import published_values
from fedlada.paper.published import NAMES
from fedlada.runs.metrics import read_rows
from fedlada.training.history import History
from fedlada.workbench.campaign.archive import read_archive
from fedlada.workbench.campaign.request import Goal
from fedlada.workbench.campaign.store import diverged_in
from fedlada.workbench.experiment import Experiment
from fedlada.workbench.parallel import Job, run_jobs
from fedlada.workbench.report.table import Table

KEPT = {
    "cifar100": Kept.at("search_h200_202611.json", "search.md", "python benchmarks/search.py table --write"),
    "cifar10": Kept.at(
        "search_cifar10_h200_202611.json",
        "search-cifar10.md",
        "python benchmarks/search.py table --dataset cifar10 --write",
    ),
}
"""By data set."""
DATASET = "cifar100"
"""Where none is named."""
NUM_TRIALS = {"cifar100": 12, "cifar10": 12, "tinyimagenet": 6}
"""The best third of them goes on to stage two."""
STAGES, EVALUATED, SMOOTH = (100, 200, 300), 5, 5
"""Stage one ranks by the first of these rounds, stage two by all; rounds between evaluations; how many make a mean."""


# The trials -----------------------------------------------------------------------------------------------------------

Range = tuple[float, float]
RATE, SERVER_RATE, ALPHA = (0.01, 0.3), (0.5, 2.0), (0.02, 0.5)
L2, DECOUPLED = (1e-4, 1e-2), (1e-3, 0.3)


@dataclass(frozen=True)
class Space:
    """Where the values of a method are drawn from."""

    lr: Range
    others: Mapping[str, Range]
    """The third and the fourth value."""
    has_coins: bool = False
    """Coins for beta1 and for the kind of decay."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Values of every trial."""

    def draw(self, random: Random) -> dict[str, Any]:
        """One trial, in the order of the protocol."""
        drawn: dict[str, Any] = {
            name: log_uniform(random, *ends) for name, ends in {"lr": self.lr, **self.others}.items()
        }
        decay = L2
        if self.has_coins:
            drawn["beta1"] = 0.0 if coin(random) else 0.9
            drawn["decoupled"] = coin(random)
            decay = DECOUPLED if drawn["decoupled"] else L2
        return {**drawn, **self.fixed, "weight_decay": log_uniform(random, *decay)}


def log_uniform(random: Random, low: float, high: float) -> float:
    return math.exp(random.uniform(math.log(low), math.log(high)))


def coin(random: Random) -> bool:
    return random.random() < 0.5


ADAPTIVE_RATE, V_INIT, MU, RHO = (1e-4, 3e-3), (1e-9, 1e-4), (0.01, 1.0), (0.01, 0.3)
SPACES = {
    "fedavg": Space(RATE, {"server_lr": SERVER_RATE}),
    "fedprox": Space(RATE, {"server_lr": SERVER_RATE, "mu": MU}),
    "scaffold": Space(RATE, {"server_lr": SERVER_RATE}),
    "fedcm": Space(RATE, {"server_lr": SERVER_RATE, "alpha": ALPHA}),
    "fedadam": Space(RATE, {"server_lr": (0.01, 0.3), "tau": (1e-3, 0.1)}),
    "fedadam_amended": Space(RATE, {"server_lr": (0.01, 0.3), "alpha": ALPHA}),
    "localadam": Space(ADAPTIVE_RATE, {"v_init": V_INIT, "server_lr": SERVER_RATE}, has_coins=True),
    "fedlada": Space(ADAPTIVE_RATE, {"v_init": V_INIT, "alpha": ALPHA}, has_coins=True),
}
"""By method, in the protocol's order."""
LATER = {
    "feddyn": Space(RATE, {"mu": MU}, fixed={"clip_pull": False}),
    "mofedsam": Space(RATE, {"alpha": ALPHA, "rho": RHO}),
    "fedsmoo": Space(RATE, {"mu": MU, "rho": RHO}, fixed={"clip_pull": False}),
    "fedlada_sam": Space(ADAPTIVE_RATE, {"alpha": ALPHA, "rho": RHO}, has_coins=True),
}
"""Methods that joined later, under the same rules."""
EVERY = {**SPACES, **LATER}


@dataclass(frozen=True)
class Trial:
    """One set of values of a method."""

    method: str
    number: int
    """From 1, which is the printed one."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The rate and hyperparameters that differ from the printed ones."""
    dataset: str = DATASET

    @property
    def key(self) -> str:
        return f"{self.dataset}/{self.method}/{self.number}"

    def experiment(self, **changes: Any) -> Experiment:
        hyper = {name: value for name, value in self.values.items() if name != "lr"}
        rate = {"lr": self.values["lr"]} if "lr" in self.values else {}
        fields = {"rounds": STAGES[-1], "eval_every": EVALUATED, "validation": 0.1, "seed": 0, **rate, **changes}
        return as_printed(self.method, self.dataset, hyper, **fields)

    def text(self) -> str:
        """Its values in words, with those of the search alone."""
        experiment = self.experiment()
        hyper = {name: experiment.hyper[name] for name in ("weight_decay", *EVERY[self.method].others)}
        numbers = ", ".join(f"{name} {value:.3g}" for name, value in {"lr": experiment.lr, **hyper}.items())
        if not EVERY[self.method].has_coins:
            return numbers
        kind = "decoupled" if experiment.hyper["decoupled"] else "L2"
        return f"{numbers}, beta1 {experiment.hyper['beta1']:g}, {kind}"


def trials(method: str, dataset: str = DATASET) -> list[Trial]:
    """The printed values, then what is drawn."""
    random = Random(f"{dataset} {method}")
    drawn = [EVERY[method].draw(random) for _ in range(NUM_TRIALS[dataset] - 1)]
    every = enumerate([first_values(method, dataset), *drawn], start=1)
    return [Trial(method, number, values, dataset) for number, values in every]


def first_values(method: str, dataset: str) -> dict[str, Any]:
    """Of trial 1, where they are not the method's printed ones: the simulator's, and for FedLADA with SAM FedLADA's."""
    if method not in LATER:
        return {}
    parent = values_of("paper", dataset, dataset, "fedlada").hyper
    known = parent if method == "fedlada_sam" else published_values(method)["hyper"]
    return {**{name: known[name] for name in LATER[method].others if name in known}, **LATER[method].fixed}


# Their scores ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Outcome:
    """A trial as far as it was run."""

    trial: Trial
    history: History
    diverged: tuple[int, str] | None = None

    def mean(self, round: int) -> float | None:
        """A(round): the mean of the five evaluations that end there; None where one of them is missing."""
        values = dict(zip(*self.history.measured("validation_accuracy"), strict=True))
        rounds = range(round - (SMOOTH - 1) * EVALUATED, round + 1, EVALUATED)
        return statistics.mean(values[one] for one in rounds) if all(one in values for one in rounds) else None

    def score(self, stage: int) -> float | None:
        """By which a stage ranks it; None where it diverged or did not go so far."""
        means = [self.mean(round) for round in (STAGES[:1] if stage == 1 else STAGES)]
        known = [one for one in means if one is not None]
        return statistics.mean(known) if len(known) == len(means) else None

    def is_settled(self, stage: int) -> bool:
        return self.diverged is not None or self.score(stage) is not None


def ranked(outcomes: Sequence[Outcome], stage: int) -> list[Outcome]:
    """The best first; those that diverged last, and of equal ones the earlier."""

    def place(one: Outcome) -> tuple[bool, float, int]:
        score = one.score(stage)
        return score is None, -(score or 0.0), one.trial.number

    return sorted(outcomes, key=place)


def best_of_stage_one(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those that go on; nobody where a trial of the method is missing. What diverged cannot go on."""
    num_trials = NUM_TRIALS[outcomes[0].trial.dataset]
    if len(outcomes) < num_trials or not all(one.is_settled(1) for one in outcomes):
        return []
    return [one for one in ranked(outcomes, 1)[: num_trials // 3] if one.score(1) is not None]


def winner(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The best of stage two, where it has ended."""
    best = best_of_stage_one(outcomes)
    if not best or not all(one.is_settled(2) for one in best):
        return None
    first = ranked(best, 2)[0]
    return first if first.score(2) is not None else None


# Running them ---------------------------------------------------------------------------------------------------------


def run(methods: Sequence[str], given: argparse.Namespace) -> None:
    """Stage one of all methods, then stage two, as far as the time goes."""
    deadline = None if given.minutes is None else time.time() + 60 * given.minutes
    # Trial by trial, not method by method: where the time ends too soon, no method has more trials than another.
    every = {method: trials(method, given.dataset) for method in methods}
    run_stage(1, [trial for same in zip(*every.values(), strict=True) for trial in same], given, deadline)
    best = {method: best_of_stage_one([in_folder(one, given.out) for one in own]) for method, own in every.items()}
    for method, own in best.items():
        print(f"{method}: {', '.join(f'{one.trial.number} ({one.score(1):.4f})' for one in own)}", flush=True)
    run_stage(2, [one.trial for own in best.values() for one in own], given, deadline)


def run_stage(stage: int, chosen: Sequence[Trial], given: argparse.Namespace, deadline: float | None) -> None:
    missing = [trial for trial in chosen if not in_folder(trial, given.out).is_settled(stage)]
    jobs = [job(stage, trial, given) for trial in missing]
    print(f"stage {stage}: {len(jobs)} of {len(chosen)} runs to make", flush=True)
    failures = run_jobs(jobs, num_processes=given.jobs, deadline=deadline) if jobs else []
    for trial, why in zip(missing, failures, strict=True):
        if why:
            print(f"{trial.key}: {why}", flush=True)


def job(stage: int, trial: Trial, given: argparse.Namespace) -> Job:
    experiment = trial.experiment(device=given.device, data_dir=given.data_dir)
    if given.trial:
        small = {"num_clients": 20, "cohort_size": 2, "local_steps": 1, "data_dir": None, "augment": "none"}
        experiment = replace(experiment, dataset="digits", model="mlp", **small)
    goal = Goal(STAGES[0] if stage == 1 else STAGES[-1])
    discards = stage == 2 or experiment.build_method().keeps_memory
    return Job(trial.key, experiment.to_json(), given.out / folder_name(trial.key), (goal,), discards)


def in_folder(trial: Trial, out: Path) -> Outcome:
    folder = out / folder_name(trial.key)
    return Outcome(trial, History(read_rows(folder / "metrics.jsonl")), diverged_in(folder))


# The page -------------------------------------------------------------------------------------------------------------


def in_archive(path: Path) -> Callable[[Trial], Outcome]:
    runs = {identity(run.config): run for run in read_archive(path).runs}

    def outcome(trial: Trial) -> Outcome:
        found = runs.get(identity(json.loads(json.dumps(trial.experiment().to_json()))))
        return Outcome(trial, History()) if found is None else Outcome(trial, History(found.rows()), found.diverged)

    return outcome


@cache
def outcomes(method: str, dataset: str = DATASET) -> Sequence[Outcome]:
    """All trials of a method, from the committed archive."""
    return tuple(map(_committed(dataset), trials(method, dataset)))


@cache
def _committed(dataset: str) -> Callable[[Trial], Outcome]:
    return in_archive(KEPT[dataset].archive)


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def row(one: Outcome, place: int, chosen: Outcome | None) -> tuple[str, ...]:
    """A line of a method's table; what diverged says in which round."""
    means = [percent(one.mean(round)) for round in STAGES]
    if one.diverged is not None:
        means = [f"diverged in round {one.diverged[0] + 1}" if one.mean(STAGES[0]) is None else means[0], *means[1:]]
    known = "published" if one.trial.method in LATER else "paper's"
    said = [known] * (one.trial.number == 1) + ["winner"] * (chosen is not None and one.trial is chosen.trial)
    number = ", ".join([str(one.trial.number), *said])
    return (number, one.trial.text(), str(place), *means, percent(one.score(2)))


def of_method(method: str, outcomes: Sequence[Outcome]) -> Table:
    """Every trial, in the order of stage one."""
    chosen = winner(outcomes)
    order = ranked(outcomes, 1)
    columns = ("trial", "values", "rank at 100", *(f"A({round})" for round in STAGES), "score")
    return Table(NAMES[method], columns, tuple(row(one, place, chosen) for place, one in enumerate(order, start=1)))


def summary(by_method: Mapping[str, Sequence[Outcome]]) -> Table:
    """The winner of each method, the paper's values, and the spread of its trials."""
    rows = []
    for method, outcomes in by_method.items():
        chosen = winner(outcomes)
        known = sorted(score for one in outcomes if (score := one.score(1)) is not None)
        spread = " / ".join(map(percent, (known[0], statistics.median(known), known[-1]))) if known else "-"
        values = "stage two is missing" if chosen is None else f"{chosen.trial.number}: {chosen.trial.text()}"
        means = ["-"] * 3 if chosen is None else [percent(chosen.mean(round)) for round in STAGES]
        printed = percent(outcomes[0].score(1))
        diverged = str(sum(one.diverged is not None for one in outcomes))
        score = percent(None if chosen is None else chosen.score(2))
        rows.append((NAMES[method], values, *means, score, printed, spread, diverged))
    columns = ("method", "winner", *(f"A({round})" for round in STAGES), "score", "trial 1, A(100)")
    return Table("Winners", (*columns, "A(100): min / median / max", "diverged"), tuple(rows))


def tables(archive: Path, dataset: str = DATASET) -> str:
    """All of them as Markdown, for the methods that have run."""
    outcome = in_archive(archive)
    every = {method: [outcome(trial) for trial in trials(method, dataset)] for method in EVERY}
    by_method = {method: own for method, own in every.items() if any(len(one.history) for one in own)}
    made = [summary(by_method), *(of_method(method, own) for method, own in by_method.items())]
    return "\n".join(table.to_markdown() for table in made)


def main() -> None:
    parser = options(__doc__, "runs/search", EVERY, NUM_TRIALS)
    given = parser.parse_args()
    methods = [method for method in EVERY if (method in SPACES if given.only is None else method in given.only)]
    if given.what == "table":
        show(tables, KEPT, given, parser)
    elif given.what == "run":
        given.out.mkdir(parents=True, exist_ok=True)
        run(methods, given)
    else:
        for trial in (trial for method in methods for trial in trials(method, given.dataset)):
            print(f"{folder_name(trial.key)}  {trial.key}: {trial.text()}")


if __name__ == "__main__":
    main()
