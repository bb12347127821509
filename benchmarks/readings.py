"""Which reading of the paper gives its printed rounds: runs of FedLADA and LocalAdam, one change at a time.

    python benchmarks/readings.py list
    python benchmarks/readings.py run --data-dir data --out runs/readings --jobs 7 [--only cifar10/beta1] [--minutes 25]
    fedlada pack runs/readings --out benchmarks/results/readings_h200_202611.json
    python benchmarks/readings.py table

The readings, their order and the rule that judges them stand in `docs/results/protocol.md`; none of them is a default.
Each run is a process of its own. `--trial` runs ten rounds of each on the digits, to see that all of them work.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from archived_runs import cell
from many_runs import Kept, as_printed, folder_name, identity
from torch import Tensor

from fedlada.methods.local import AMSGrad, ClipNorm, LocalTransform, TowardGlobalDirection, WeightDecay
from fedlada.methods.method import FederatedMethod
from fedlada.methods.recipes import hyper_parameters
from fedlada.methods.server import SGD
from fedlada.methods.state import ClientRound, Round, Step, Vectors
from fedlada.paper.published import NAMES, SPEED_TEST, SPEED_TRAIN, STAGES, TITLES
from fedlada.runs.folder import discard_states
from fedlada.runs.metrics import read_rows
from fedlada.training.history import History
from fedlada.training.simulation import TrainingDiverged
from fedlada.workbench.campaign.archive import read_archive
from fedlada.workbench.campaign.request import Milestone
from fedlada.workbench.experiment import Experiment
from fedlada.workbench.report.table import Table

KEPT = Kept.at("readings_h200_202611.json", "readings.md", "python benchmarks/readings.py table --write")
EARLIER = Path(__file__).parent / "results" / "runs_h200_202611.json"
"""The runs of the paper's tables, where seeds of printed values are that were not run again."""
EVALUATED, SMOOTH = 5, 5
"""Rounds between the evaluations that count, and how many of them "reached" takes the mean of."""
TARGETS = {"cifar100": (0.40, 0.45, 0.49), "cifar10": (0.70, 0.75, 0.80)}
"""T6's two, and one that the paper has no figure for."""
JUDGED = {"cifar100": (0.40, 0.45), "cifar10": (0.70, 0.80)}
SIMULATOR = {"fedavg": 80.65, "fedprox": 81.05, "fedadam": 82.56}
"""The authors' simulator's README: the best accuracy in 1000 rounds of CIFAR-10."""


# Transforms that the library does not have ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DecayInFirstMoment(AMSGrad):
    """AMSGrad whose m has the decay in it and whose v has not."""

    strength: float = 0.0

    def apply(self, update: Tensor, local: Vectors, step: Step) -> tuple[Tensor, Vectors]:
        v = self.beta2 * local["v"] + (1 - self.beta2) * update * update
        m = self.beta1 * local["m"] + (1 - self.beta1) * (update + self.strength * step.params)
        v_max = torch.maximum(v, local["v_max"])
        return m / v_max.sqrt(), {"v": v, "m": m, "v_max": v_max}


@dataclass(frozen=True, kw_only=True)
class FirstMomentCorrected(AMSGrad):
    """AMSGrad with m divided by 1 - beta1^tau, and v as it is."""

    def begin(self, shared: Vectors, kept: Vectors, like: Tensor) -> Vectors:
        return {**super().begin(shared, kept, like), "tau": like.new_zeros((*like.shape[:-1], 1))}

    def apply(self, update: Tensor, local: Vectors, step: Step) -> tuple[Tensor, Vectors]:
        tau = local["tau"] + 1
        direction, state = super().apply(update, local, step)
        return direction / (1 - self.beta1**tau), {**state, "tau": tau}


@dataclass(frozen=True, kw_only=True)
class DirectionWithoutDecay(TowardGlobalDirection):
    """The amendment with a g_a that does not hold the decay behind it: clients send the mean of their amended steps."""

    def begin(self, shared: Vectors, kept: Vectors, like: Tensor) -> Vectors:
        return {"sum": torch.zeros_like(like)}

    def apply(self, update: Tensor, local: Vectors, step: Step) -> tuple[Tensor, Vectors]:
        amended, _ = super().apply(update, {}, step)
        return amended, {"sum": local["sum"] + amended}

    def finish(self, local: Vectors, done: ClientRound, step: Step) -> tuple[Vectors, Vectors]:
        return {"direction": local["sum"] / done.num_steps}, step.kept

    def merge(self, shared: Vectors, mean: Vectors, round: Round) -> Vectors:
        return mean


Hyper = Mapping[str, Any]
Parts = tuple[LocalTransform, ...]


def _moments(kind: type[AMSGrad], hyper: Hyper, **others: Any) -> AMSGrad:
    names = ("beta1", "beta2", "v_init", "v_start", "maximum", "bias_correction", "power", "second_moment")
    return kind(**{name: hyper[name] for name in names}, **others)


def _in_m(hyper: Hyper) -> Parts:
    return (_moments(DecayInFirstMoment, hyper, strength=hyper["weight_decay"]), _amendment(hyper))


def _inside_alpha(hyper: Hyper) -> Parts:
    return (_moments(AMSGrad, hyper), _decay(hyper), _amendment(hyper))


def _outside_g_a(hyper: Hyper) -> Parts:
    return (_moments(AMSGrad, hyper), DirectionWithoutDecay(alpha=hyper["alpha"]), _decay(hyper))


def _m_corrected(hyper: Hyper) -> Parts:
    return (_moments(FirstMomentCorrected, hyper), _amendment(hyper), _decay(hyper))


def _decay(hyper: Hyper) -> WeightDecay:
    return WeightDecay(strength=hyper["weight_decay"])


def _amendment(hyper: Hyper) -> TowardGlobalDirection:
    return TowardGlobalDirection(alpha=hyper["alpha"])


RULES: dict[str, Callable[[Hyper], Parts]] = {
    "decay in m, not in v": _in_m,
    "decay inside alpha": _inside_alpha,
    "decay outside g_a": _outside_g_a,
    "m corrected for its start": _m_corrected,
}


@dataclass(frozen=True, kw_only=True)
class OtherRule(Experiment):
    """A run whose local rule is none of the library's; its stored method has a name that no recipe has."""

    rule: str = ""

    def build_method(self) -> FederatedMethod:
        hyper = {**hyper_parameters(self.method), **self.hyper}
        local = (ClipNorm(max_norm=hyper["clip_norm"]), *RULES[self.rule](hyper))
        return FederatedMethod(name=self.method, local=local, server=SGD(lr=hyper["server_lr"]))

    def to_json(self) -> dict[str, Any]:
        values = super().to_json()
        return {**values, "method": f"{self.method}, {values.pop('rule')}"}


# The readings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """One way to read the paper: what differs from its printed values. The name is part of the archived runs' keys."""

    name: str
    about: str = ""
    method: str = "fedlada"
    hyper: Mapping[str, Any] = field(default_factory=dict)
    """A value may be a dict by data set."""
    others: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the experiment."""
    rule: str = ""

    @property
    def shown(self) -> str:
        """The name in tables."""
        name = self.name.removeprefix("LocalAdam, ")
        return SHOWN.get(name, name)

    def experiment(self, dataset: str, seed: int, **changes: Any) -> Experiment:
        """The run on one of the paper's data sets, every value said."""
        own = {name: value[dataset] if isinstance(value, dict) else value for name, value in self.hyper.items()}
        fields = {"seed": seed, **({"rule": self.rule} if self.rule else {}), **self.others, **changes}
        return as_printed(self.method, dataset, own, kind=OtherRule if self.rule else Experiment, **fields)


SHOWN = {
    "printed": "paper's values",
    "m corrected for its start": "m with bias correction",
    "v from the server's": "v starts from the server's",
    "no maximum": "no maximum (Adam)",
    "a coin for each client": "independent client sampling",
    "a crop for every image": "every image cropped",
}
DECAY = {"weight_decay": {"cifar100": 0.05, "cifar10": 0.1}}
NO_MAXIMUM = {"maximum": False, "v_start": "server"}
READINGS = [
    Reading("printed"),
    Reading("beta1 0.1", "H1", hyper={"beta1": 0.1}),
    Reading("beta1 0", "H1", hyper={"beta1": 0.0}),
    Reading("beta1 0.1, beta2 0.01", "H1", hyper={"beta1": 0.1, "beta2": 0.01}),
    Reading("m corrected for its start", "H1", rule="m corrected for its start"),
    Reading("decay", "H2", hyper=DECAY),
    Reading("beta1 0.1, decay", "H1, H2", hyper={"beta1": 0.1, **DECAY}),
    Reading("beta1 0, decay", "H1, H2", hyper={"beta1": 0.0, **DECAY}),
    *(
        Reading(f"lr {lr:g}, x {by:g}", "H3", others={"lr": lr, "lr_decay": by})
        for lr in (1e-3, 3e-3)
        for by in (0.995, 0.999, 1.0)
    ),
    *(Reading(rule, "H4", rule=rule) for rule in list(RULES)[:3]),
    Reading("decay in the gradient (L2)", "H4", hyper={"decoupled": False}),
    Reading("tf32", "H5", others={"precision": "tf32"}),
    Reading("float32", "H5", others={"precision": "float32"}),
    Reading("v_init 1e-16", "H6", hyper={"v_init": 1e-16}),
    Reading("v from the server's", "H6", hyper={"v_start": "server"}),
    Reading("no maximum", "H6", hyper=NO_MAXIMUM),
    Reading("a coin for each client", "H7", others={"cohorts": "bernoulli"}),
    Reading("a crop for every image", "H7", others={"augment": "crop"}),
    Reading("no clipping", "H7", hyper={"clip_norm": None}),
    Reading("LocalAdam, printed", method="localadam"),
    Reading("LocalAdam, beta1 0.1", "H1", method="localadam", hyper={"beta1": 0.1}),
    Reading("LocalAdam, beta1 0.1, decay", "H1, H2", method="localadam", hyper={"beta1": 0.1, **DECAY}),
    Reading("LocalAdam, beta1 0.1, decay 1", "H1, H2", method="localadam", hyper={"beta1": 0.1, "weight_decay": 1.0}),
    *(Reading(f"{name}, printed", method=name) for name in SIMULATOR),
]
BY_NAME = {reading.name: reading for reading in READINGS}
HORIZON = {"cifar100": 300, "cifar10": 260}
LONG = {"cifar100": 400, "cifar10": 260}
"""LocalAdam's: the paper's second target on CIFAR-100 lies at 362."""
NEAR = ("printed", "beta1 0.1", "beta1 0.1, decay")
"""With three seeds; of seed 0 every round is evaluated, and the last goes on to T1's targets."""
TO_T1 = {"rounds": 700, "eval_train_every": 25}


@dataclass(frozen=True)
class Job:
    """One run."""

    reading: Reading
    dataset: str
    seed: int = 0

    @property
    def key(self) -> str:
        return f"{self.dataset}/{self.reading.name}/{self.seed}"

    @property
    def folder(self) -> str:
        """As a store names its runs."""
        return folder_name(self.key)

    @property
    def horizon(self) -> int:
        """The round at which it is judged."""
        if self.reading.method in SIMULATOR:
            return 1000
        return (LONG if self.reading.method == "localadam" else HORIZON)[self.dataset]

    def experiment(self, **changes: Any) -> Experiment:
        is_near = self.reading.name in NEAR and self.seed == 0
        goes_on = TO_T1 if self.seed == 0 and self.reading.name == NEAR[-1] else {}
        plain = {"rounds": self.horizon, "eval_every": 1 if is_near else EVALUATED}
        return self.reading.experiment(self.dataset, self.seed, **{**plain, **goes_on, **changes})


def plan() -> list[Job]:
    """All runs, the most important first: time on a GPU may end before the list does."""
    main = ("beta1 0.1, decay", "printed", "beta1 0.1", "decay", "beta1 0, decay", "beta1 0")
    controls = [one.name for one in READINGS if one.method == "localadam"]
    last = ("beta1 0.1, beta2 0.01", "m corrected for its start", "tf32", "float32")
    others = [one.name for one in READINGS if one.about in ("H4", "H3", "H6", "H7")]
    of = [(name, "cifar100", 0) for name in main]
    of += [(name, "cifar100", seed) for name in reversed(NEAR) for seed in (1, 2)]
    of += [(name, "cifar100", 0) for name in controls]
    of += [(name, "cifar10", 0) for name in main]
    of += [(name, "cifar100", 0) for name in (*others, *last[:3])]
    of += [(name, "cifar10", seed) for name in reversed(NEAR) for seed in (1, 2)]
    of += [(name, "cifar10", 0) for name in controls]
    of += [(last[3], "cifar100", 0)]
    of += [(f"{name}, printed", "cifar10", 0) for name in SIMULATOR]
    return [Job(BY_NAME[name], dataset, seed) for name, dataset, seed in of]


def chosen(beginnings: Sequence[str] | None) -> list[Job]:
    """The whole list, or those whose keys begin so; a key in full may also name a seed that the list leaves out."""
    if beginnings is None:
        return plan()
    every = [Job(reading, dataset, seed) for reading in READINGS for dataset in TARGETS for seed in (0, 1, 2)]
    found = [job for one in beginnings for job in every if job.key == one]
    return found or [job for job in plan() if job.key.startswith(tuple(beginnings))]


# Running them ---------------------------------------------------------------------------------------------------------


def run_one(job: Job, given: argparse.Namespace) -> None:
    """One run into its folder; of an earlier try that did not end nothing is kept."""
    changes: dict[str, Any] = {"device": given.device, "data_dir": given.data_dir}
    experiment = job.experiment(**changes)
    if given.trial:
        small = {"model": "mlp", "num_clients": 20, "cohort_size": 4, "data_dir": None, "augment": "none"}
        experiment = replace(experiment, dataset="digits", rounds=10, eval_every=5, eval_train_every=None, **small)
    folder = given.out / job.folder
    shutil.rmtree(folder, ignore_errors=True)
    try:
        experiment.run(out=folder)
    except TrainingDiverged as error:
        print(f"{job.key}: {error}", flush=True)
    discard_states(folder)


def run_all(jobs: Sequence[Job], given: argparse.Namespace) -> None:
    """A process for each run, so many at a time; what is not done when the time is over is ended where it is."""
    given.out.mkdir(parents=True, exist_ok=True)
    began, waiting, running = time.monotonic(), list(jobs), {}
    flags = ["--out", str(given.out), "--data-dir", given.data_dir, "--device", given.device]
    flags += ["--trial"] if given.trial else []
    limit = math.inf if given.minutes is None else 60 * given.minutes
    while waiting or running:
        for key, process in list(running.items()):
            if process.poll() is not None:
                del running[key]
                print(f"{time.monotonic() - began:6.0f} s  ended {key} ({process.returncode})", flush=True)
        if time.monotonic() - began > limit:
            for process in running.values():
                process.terminate()
            print(f"the time is over; not begun: {', '.join(job.key for job in waiting) or 'none'}", flush=True)
            return
        if waiting and len(running) < given.jobs:
            job = waiting.pop(0)
            if is_done(job, given.out):
                continue
            with (given.out / f"{job.folder}.log").open("w") as log:
                command = [sys.executable, __file__, "one", "--only", job.key, *flags]
                running[job.key] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            print(f"{time.monotonic() - began:6.0f} s  began {job.key}", flush=True)
        else:
            time.sleep(0.2)


def is_done(job: Job, out: Path) -> bool:
    return len(read_rows(out / job.folder / "metrics.jsonl")) >= job.experiment().rounds


# The tables ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Stored:
    """The histories of two archives by what they are; a run that both have is the newer one."""

    new: Mapping[str, History]
    earlier: Mapping[str, History]

    @classmethod
    def read(cls, new: Path, earlier: Path) -> Stored:
        return cls(
            *({identity(run.config): History(run.rows()) for run in read_archive(one).runs} for one in (new, earlier))
        )

    def of(self, job: Job) -> History | None:
        """As far as it counts; None where it did not go so far."""
        found = self._found(job, self.new) or self._found(job, self.earlier)
        return None if found is None or len(found) < job.horizon else found

    def is_earlier(self, job: Job) -> bool:
        return self._found(job, self.new) is None

    def longest(self, job: Job) -> History | None:
        """The one that goes further."""
        both = [one for one in (self._found(job, self.new), self._found(job, self.earlier)) if one is not None]
        return max(both, key=len, default=None)

    def in_both(self) -> list[tuple[History, History]]:
        return [(self.new[name], self.earlier[name]) for name in self.new if name in self.earlier]

    @staticmethod
    def _found(job: Job, runs: Mapping[str, History]) -> History | None:
        return runs.get(identity(json.loads(json.dumps(job.experiment().to_json()))))


def evaluated(history: History, every: int, until: int) -> History:
    """The evaluations that count."""
    return History([row for row in history[:until] if row["round"] % every == 0])


@dataclass(frozen=True, eq=False)
class Found:
    """A reading on a data set: its seeds, to the horizon."""

    reading: Reading
    dataset: str
    histories: Sequence[History]
    num_earlier: int

    @classmethod
    def of(cls, reading: Reading, dataset: str, runs: Stored) -> Found:
        jobs = [Job(reading, dataset, seed) for seed in (0, 1, 2)]
        own = [(job, history) for job in jobs if (history := runs.of(job)) is not None]
        histories = [evaluated(history, EVALUATED, job.horizon) for job, history in own]
        return cls(reading, dataset, histories, sum(runs.is_earlier(job) for job, _ in own))

    @property
    def seeds(self) -> str:
        return f"{len(self.histories)}{f', {self.num_earlier} earlier' if self.num_earlier else ''}"

    @property
    def horizon(self) -> int:
        return Job(self.reading, self.dataset).horizon

    @property
    def papers(self) -> dict[float, float]:
        """T6's figures by target."""
        return dict(zip(JUDGED[self.dataset], STAGES[self.reading.method][self.dataset], strict=True))

    def rounds(self, target: float, smooth: int) -> list[int | None]:
        return [Milestone("test_accuracy", target, smooth).round_in(one) for one in self.histories]

    def ratio(self, target: float, smooth: int) -> tuple[float, bool]:
        """Ours by the paper's, and whether that is a lower bound, because a seed did not arrive."""
        rounds = self.rounds(target, smooth)
        return statistics.mean(one or self.horizon for one in rounds) / self.papers[target], None in rounds

    def distance(self, smooth: int) -> str:
        """The protocol's: the sum of |ln(ours / paper)|."""
        ratios = [self.ratio(target, smooth) for target, paper in self.papers.items() if math.isfinite(paper)]
        return bounded(sum(abs(math.log(value)) for value, _ in ratios), any(is_bound for _, is_bound in ratios))

    @property
    def best(self) -> str:
        return f"{statistics.mean(100 * (one.best() or 0.0) for one in self.histories):.1f}"


def bounded(value: float, is_bound: bool) -> str:
    return f"{'> ' if is_bound else ''}{value:.2f}"


def in_cell(rounds: Sequence[int | None], end: int) -> str:
    return cell(rounds, [end] * len(rounds), 1)


def percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def ladder(dataset: str, method: str, runs: Stored) -> Table:
    """The paper's values, then each reading: rounds by first crossing and by the mean of five, best, distance."""
    every = [Found.of(reading, dataset, runs) for reading in READINGS if reading.method == method]
    rows = []
    for one in every:
        if one.histories:
            cells = [
                in_cell(one.rounds(target, smooth), one.horizon)
                for smooth in (1, SMOOTH)
                for target in TARGETS[dataset]
            ]
            named = (one.reading.shown, one.reading.about, one.seeds)
            rows.append((*named, *cells, one.best, one.distance(1), one.distance(SMOOTH)))
    papers = [f"{every[0].papers.get(target, '-')}".replace("inf", "never") for target in TARGETS[dataset]]
    rows.append(("paper", "", "5", *papers, *[""] * (len(papers) + 3)))
    targets = [percent(target) for target in TARGETS[dataset]]
    columns = ("reading", "", "seeds", *targets, *(f"{one} (5)" for one in targets), "best", "distance", "distance (5)")
    return Table(f"{NAMES[method]} on {TITLES[dataset]}, to round {every[0].horizon}", columns, tuple(rows))


def ratios(runs: Stored) -> Table:
    """The readings with three seeds: our rounds divided by the paper's, for each target."""
    rows = []
    for name in NEAR:
        for smooth in (1, SMOOTH):
            found = [Found.of(BY_NAME[name], dataset, runs) for dataset in TARGETS]
            cells = [bounded(*one.ratio(target, smooth)) for one in found for target in one.papers]
            rows.append((BY_NAME[name].shown, "first crossing" if smooth == 1 else f"mean of {smooth}", *cells))
    targets = [f"{TITLES[dataset]}, {percent(target)}" for dataset in TARGETS for target in JUDGED[dataset]]
    return Table("Our rounds divided by the paper's, three seeds", ("reading", "reached by", *targets), tuple(rows))


def every_round(runs: Stored) -> Table:
    """The same runs, evaluated in every round and in every fifth: how much a first crossing depends on it."""
    rows = []
    for dataset, targets in TARGETS.items():
        for job in (Job(BY_NAME[name], dataset) for name in NEAR):
            history = runs.of(job)
            if history is not None and 1 in history.measured("test_accuracy")[0]:
                both = [evaluated(history, every, job.horizon) for every in (1, EVALUATED)]
                pairs = [[in_cell([one.rounds_to(target)], job.horizon) for one in both] for target in targets]
                rows.append((TITLES[dataset], job.reading.shown, *(" / ".join(pair) for pair in pairs)))
    columns = (
        "data set",
        "reading",
        *(" or ".join(map(percent, both)) for both in zip(*TARGETS.values(), strict=True)),
    )
    return Table("First crossing, seed 0, evaluated in every round / in every fifth", columns, tuple(rows))


def further(runs: Stored) -> Table:
    """T1's targets with the paper's values and with the nearest reading, seed 0."""
    rows = []
    for dataset, target in (("cifar100", 0.51), ("cifar10", 0.84)):
        for name in (NEAR[0], NEAR[-1]):
            history = runs.longest(Job(BY_NAME[name], dataset))
            if history is None:
                continue
            test = evaluated(history, EVALUATED, len(history))
            end = len(history)
            cells = [
                in_cell([Milestone("test_accuracy", target, smooth).round_in(test)], end) for smooth in (1, SMOOTH)
            ]
            fit = in_cell([history.rounds_to(0.98, "full_train_accuracy")], end)
            bests = (test.best(), history.best("full_train_accuracy"))
            best = [f"{100 * (one or 0.0):.1f}" for one in bests]
            rows.append((TITLES[dataset], BY_NAME[name].shown, str(end), *cells, best[0], fit, best[1]))
        papers = [f"{one['fedlada'][dataset]:g}" for one in (SPEED_TEST, SPEED_TRAIN)]
        rows.append((TITLES[dataset], "paper", "", papers[0], "", "", papers[1], ""))
    columns = ("data set", "reading", "rounds run", "51 or 84 %", "51 or 84 % (5)", "best", "98 % of training data")
    return Table("T1's targets, seed 0", (*columns, "best, training data"), tuple(rows))


def simulator(runs: Stored) -> Table:
    """The three methods of the authors' simulator that had not been run to round 1000."""
    jobs = {name: Job(BY_NAME[f"{name}, printed"], "cifar10") for name in SIMULATOR}
    bests = {name: history.best() for name, job in jobs.items() if (history := runs.of(job)) is not None}
    rows = [(NAMES[name], f"{100 * (best or 0.0):.2f}", f"{SIMULATOR[name]:.2f}") for name, best in bests.items()]
    return Table("CIFAR-10, paper's values, seed 0, best by round 1000", ("method", "ours", "simulator"), tuple(rows))


def repeated(runs: Stored) -> str:
    """Whether runs that both archives have are the same."""
    pairs = [[dict(zip(*one.measured("test_accuracy"), strict=True)) for one in both] for both in runs.in_both()]
    common = [(new[round], old[round]) for new, old in pairs for round in new if round in old]
    same = sum(new == old for new, old in common)
    return f"{len(pairs)} runs are in both archives; {same} of their {len(common)} common evaluations are equal.\n"


def tables(new: Path) -> str:
    """All of them as Markdown."""
    runs = Stored.read(new, EARLIER)
    ladders = [ladder(dataset, method, runs) for method in ("fedlada", "localadam") for dataset in TARGETS]
    every = (*ladders, ratios(runs), every_round(runs), further(runs), simulator(runs))
    return "\n".join([*(table.to_markdown() for table in every if table.rows), repeated(runs)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("list", "run", "one", "table"))
    parser.add_argument("--out", type=Path, default=Path("runs/readings"))
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=4, help="runs at a time")
    parser.add_argument("--only", action="append", help="those that begin so, as cifar10/beta1; can be repeated")
    parser.add_argument("--minutes", type=float, help="after which runs are ended where they are")
    parser.add_argument("--trial", action="store_true", help="ten rounds of each on the digits")
    parser.add_argument("--archive", type=Path, default=KEPT.archive)
    parser.add_argument("--write", action="store_true", help="table: put them into the page")
    given = parser.parse_args()
    jobs = chosen(given.only)
    if given.what == "table":
        text = tables(given.archive)
        print(text)
        if given.write:
            KEPT.write(text)
    elif not jobs:
        parser.error(f"nothing in the list begins with {' or '.join(given.only)}")
    elif given.what == "one":
        run_one(jobs[0], given)
    elif given.what == "run":
        run_all(jobs, given)
    else:
        for job in jobs:
            print(f"{job.folder}  {job.experiment().rounds:4d} rounds  {job.key}")


if __name__ == "__main__":
    main()
