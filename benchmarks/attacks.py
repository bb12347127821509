"""Combiners against attacks: accuracy by rule, attack, method and share of malicious clients.

    python benchmarks/attacks.py run --out runs/attacks                                   # Fashion-MNIST, on a CPU
    python benchmarks/attacks.py run --dataset cifar10 --device cuda --data-dir data --jobs 8 --out runs/attacks-cifar10
    fedlada pack runs/attacks --out benchmarks/results/attacks_fashion_cpu_202611.json
    python benchmarks/attacks.py table --write

Ten clients, all of them in every round, so one or three of ten attack in each. Runs that are there or in the archive
are not repeated, and after `--minutes` the rest is left for the next time. `--trial` takes the digits, to see that
everything works.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from many_runs import folder_name, identity, marks, write_between

from fedlada.methods.recipes import hyper_parameters
from fedlada.paper.choices import values_of
from fedlada.paper.published import NAMES, TITLES
from fedlada.paper.scales import FASHION_MNIST_PLACES
from fedlada.runs.metrics import read_rows
from fedlada.training.history import History
from fedlada.workbench.campaign.archive import read_archive
from fedlada.workbench.campaign.store import diverged_in
from fedlada.workbench.experiment import Experiment
from fedlada.workbench.parallel import Job, run_jobs
from fedlada.workbench.report.table import Table, spread

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "results" / "attacks.md"
MARKS = marks("python benchmarks/attacks.py table --write")

METHODS = ("fedavg", "fedcm", "localadam", "fedlada")
RULES = {
    "mean": "mean",
    "norm bound": "norm-bound",
    "trimmed mean": "trimmed-mean:0.3",
    "median": "median",
    "geometric median": "geometric-median",
    "Krum": "krum:3",
}
ATTACKS = {
    "sign flip x 4": "sign-flip:{share}:4",
    "labels": "label-flip:{share}",
    "ALIE, z 1.5": "a-little-is-enough:{share}:1.5",
    "moments 1e30": "poisoned-second-moments:{share}:1e30",
}
MOMENTS = "moments 1e30"
SHARES = (0.1, 0.3)


@dataclass(frozen=True)
class Size:
    """How large the runs on a data set are."""

    settings: Mapping[str, Any]
    seeds: int
    archive: Path


SIZES = {
    "fashion-mnist": Size(
        {"model": "mlp", "rounds": 10, "local_steps": 8, "batch_size": 32, "engine": "stacked"},
        3,
        RESULTS / "attacks_fashion_cpu_202611.json",
    ),
    "cifar10": Size(
        {"model": "cnn-gn", "rounds": 100, "local_steps": 20, "batch_size": 50},
        1,
        RESULTS / "attacks_cifar10_h200_202611.json",
    ),
}


@dataclass(frozen=True)
class Case:
    """One run."""

    dataset: str
    method: str
    rule: str
    attack: str | None
    share: float
    seed: int

    @property
    def key(self) -> str:
        return f"{self.dataset}/{self.method}/{self.rule}/{self.attack} {self.share:g}/{self.seed}"

    def experiment(self, **changes: Any) -> Experiment:
        settings = SIZES[self.dataset].settings
        fields = {
            "dataset": self.dataset,
            "combiner": RULES[self.rule],
            "attack": None if self.attack is None else ATTACKS[self.attack].format(share=self.share),
            "num_clients": 10,
            "cohort_size": 10,
            "eval_every": settings["rounds"],
            "checkpoint_every": 10**6,
        }
        if self.dataset == "cifar10":  # as they were when these runs were made
            values = values_of("earlier", self.dataset, self.dataset, self.method)
            fields |= {
                "lr": values.lr,
                "lr_decay": values.lr_decay,
                "hyper": {**hyper_parameters(self.method), **values.hyper},
            }
        return Experiment(method=self.method, seed=self.seed, **{**settings, **fields, **changes})


def attacks_on(method: str) -> list[str]:
    """Those that mean something: not all methods send second moments."""
    return [one for one in ATTACKS if one != MOMENTS or method in ("localadam", "fedlada")]


def cases(dataset: str) -> Iterator[Case]:
    """All of them; a seed is whole before the next one begins."""
    for seed in range(SIZES[dataset].seeds):
        for method in METHODS:
            attacked = [(None, 0.0), *((attack, share) for attack in attacks_on(method) for share in SHARES)]
            for rule in RULES:
                yield from (Case(dataset, method, rule, attack, share, seed) for attack, share in attacked)


# Running them ---------------------------------------------------------------------------------------------------------


def run(given: argparse.Namespace) -> None:
    if given.dataset == "fashion-mnist" and given.data_dir is None:
        places = [one for one in FASHION_MNIST_PLACES if (Path(one) / given.dataset).is_dir()]
        given.data_dir = places[0] if places else None
    wanted = [case for case in cases(given.dataset) if given.only is None or case.method in given.only]
    archived = in_archive(given.archive or SIZES[given.dataset].archive)
    unknown = [one for one in wanted if given.trial or archived(one) is None]
    missing = [one for one in unknown if not is_done(given.out / folder_name(one.key), one)]
    print(f"{len(missing)} of {len(wanted)} runs to make", flush=True)
    deadline = None if given.minutes is None else time.time() + 60 * given.minutes
    jobs = [job(case, given) for case in missing]
    failures = run_jobs(jobs, num_processes=given.jobs, quiet=True, deadline=deadline) if jobs else []
    for case, why in zip(missing, failures, strict=True):
        if why:
            print(f"{case.key}: {why}", flush=True)


def job(case: Case, given: argparse.Namespace) -> Job:
    small = {"dataset": "digits", "rounds": 1, "eval_every": 1, "data_dir": None} if given.trial else {}
    experiment = case.experiment(**{"device": given.device, "data_dir": given.data_dir, **small})
    return Job(case.key, experiment.to_json(), given.out / folder_name(case.key), discards=True)


def is_done(folder: Path, case: Case) -> bool:
    num_rounds = len(read_rows(folder / "metrics.jsonl"))
    return diverged_in(folder) is not None or num_rounds >= SIZES[case.dataset].settings["rounds"]


# The page -------------------------------------------------------------------------------------------------------------

Accuracy = Callable[[Case], float | None]
"""The last accuracy of a run, None where it is missing; of one that diverged, chance."""
CHANCE = 0.1


def in_archive(path: Path) -> Accuracy:
    runs = {identity(one.config): one for one in read_archive(path).runs} if path.exists() else {}

    def accuracy(case: Case) -> float | None:
        experiment = case.experiment()
        found = runs.get(identity(json.loads(json.dumps(experiment.to_json()))))
        if found is None:
            return None
        if found.diverged is not None:
            return CHANCE
        _, values = History(found.rows()).measured("test_accuracy")
        return values[-1] if found.num_rounds == experiment.rounds else None

    return accuracy


def cell(case: Case, num_seeds: int, accuracy: Accuracy) -> str:
    twins = [Case(case.dataset, case.method, case.rule, case.attack, case.share, seed) for seed in range(num_seeds)]
    known = [100 * value for twin in twins if (value := accuracy(twin)) is not None]
    return spread(known, ".1f") or "-"


def of_method(dataset: str, method: str, share: float, accuracy: Accuracy) -> Table:
    """The accuracy of each rule under each attack, with this share of malicious clients."""
    attacks, seeds = attacks_on(method), SIZES[dataset].seeds
    rows = []
    for rule in RULES:
        honest = Case(dataset, method, rule, None, 0.0, 0)
        attacked = [Case(dataset, method, rule, attack, share, 0) for attack in attacks]
        rows.append((rule, *(cell(case, seeds, accuracy) for case in (honest, *attacked))))
    many = f"{round(10 * share)} of 10 clients malicious"
    return Table(f"{NAMES[method]}, {many}", ("rule", "no attack", *attacks), tuple(rows))


def worst(dataset: str, accuracy: Accuracy) -> Table:
    """For each rule and method, the accuracy without attackers and under the worst attack by 30 % of the clients."""
    seeds = range(SIZES[dataset].seeds)

    def mean(method: str, rule: str, attack: str | None, share: float) -> float | None:
        values = [accuracy(Case(dataset, method, rule, attack, share, seed)) for seed in seeds]
        known = [100 * value for value in values if value is not None]
        return statistics.mean(known) if known else None

    rows = []
    for rule in RULES:
        cells = []
        for method in METHODS:
            honest = mean(method, rule, None, 0.0)
            attacked = {one: value for one in ATTACKS if (value := mean(method, rule, one, SHARES[-1])) is not None}
            least = min(attacked, key=lambda one: attacked[one]) if attacked else ""
            cells.append("-" if honest is None or not attacked else f"{honest:.1f} / {attacked[least]:.1f} ({least})")
        rows.append((rule, *cells))
    return Table("No attack / worst attack by 3 of 10 clients", ("rule", *(NAMES[one] for one in METHODS)), tuple(rows))


def tables(dataset: str, archive: Path) -> str:
    """All of them as Markdown."""
    accuracy = in_archive(archive)
    made = [method for method in METHODS if accuracy(Case(dataset, method, "mean", None, 0.0, 0)) is not None]
    every: Sequence[Table] = [
        worst(dataset, accuracy),
        *(of_method(dataset, method, share, accuracy) for method in made for share in SHARES),
    ]
    return "\n".join(table.to_markdown() for table in every)


def page_text() -> str:
    """The tables of every data set that has an archive."""
    there = {name: size.archive for name, size in SIZES.items() if size.archive.exists()}
    return "\n".join(f"## {TITLES[name]}\n\n{tables(name, archive)}" for name, archive in there.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("list", "run", "table"))
    parser.add_argument("--dataset", default="fashion-mnist", choices=tuple(SIZES))
    parser.add_argument("--out", type=Path, default=Path("runs/attacks"))
    parser.add_argument("--data-dir")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--only", action="append", choices=METHODS, help="a method; can be repeated")
    parser.add_argument("--minutes", type=float, help="after which what is left waits for the next time")
    parser.add_argument("--trial", action="store_true", help="one round on the digits")
    parser.add_argument("--archive", type=Path)
    parser.add_argument("--write", action="store_true", help="table: put them into the page")
    given = parser.parse_args()
    if given.what == "table":
        print(tables(given.dataset, given.archive) if given.archive else page_text())
        if given.write:
            write_between(PAGE, MARKS, page_text())
    elif given.what == "run":
        given.out.mkdir(parents=True, exist_ok=True)
        run(given)
    else:
        for case in cases(given.dataset):
            print(f"{folder_name(case.key)}  {case.key}")


if __name__ == "__main__":
    main()
