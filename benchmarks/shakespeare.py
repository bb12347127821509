"""Five methods on Shakespeare's plays, under the protocol of `docs/results/shakespeare.md`.

    python benchmarks/shakespeare.py list
    python benchmarks/shakespeare.py search --device cuda --data-dir data --jobs 8 [--budget 9] [--only char-lstm]
    python benchmarks/shakespeare.py final --device cuda --data-dir data --jobs 8 [--budget 9]
    python benchmarks/shakespeare.py table --write

`--jobs` processes take their runs from one queue. Each run is put into the archive when it has ended, and the same
command goes on with those that are missing. After `--budget` minutes the runs under way are saved under `--out`; where
safetensors is missing they begin again. Runs need torch and numpy alone. `--trial` takes small models and few rounds,
to see that everything works; it needs an `--archive` of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import math
import multiprocessing
import os
import platform
import queue
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import torch

import fedlada
from fedlada.data import ByKey, Source, load_dataset
from fedlada.methods.recipes import RECIPES, hyper_parameters
from fedlada.models import MODELS
from fedlada.paper.published import NAMES
from fedlada.training.simulation import TrainingDiverged

ARCHIVE = Path(__file__).parent / "results" / "shakespeare_h200_202611.json"
PAGE = Path(__file__).parents[1] / "docs" / "results" / "shakespeare.md"
TABLE_COMMAND = "python benchmarks/shakespeare.py table --write"
DATASET, HELD_OUT = "shakespeare", 0.1
NETWORKS = ("char-lstm", "char-transformer")


# The runs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """How large the runs are."""

    num_trials: int = 6
    trial_rounds: int = 150
    trial_every: int = 5
    smooth: int = 5
    """Evaluations that make a mean."""
    final_rounds: int = 500
    final_every: int = 25
    seeds: tuple[int, ...] = (10, 11, 12)
    work: Mapping[str, int] = field(
        default_factory=lambda: {"cohort_size": 10, "local_steps": 20, "batch_size": 20},
    )
    networks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Changes of the models."""
    num_evaluated: int | None = None
    """Windows that a run is evaluated on; None is all of them."""

    @property
    def stages(self) -> tuple[int, ...]:
        """The rounds whose means are averaged."""
        return self.trial_rounds // 3, 2 * self.trial_rounds // 3, self.trial_rounds


FULL = Size()
SMALL = Size(
    num_trials=2,
    trial_rounds=6,
    trial_every=1,
    smooth=2,
    final_rounds=4,
    final_every=2,
    seeds=(10, 11),
    work={"cohort_size": 2, "local_steps": 1, "batch_size": 4},
    networks={"char-lstm": {"width": 8}, "char-transformer": {"width": 8, "depth": 1}},
    num_evaluated=64,
)

Range = tuple[float, float]
RATE, ADAPTIVE_RATE, SERVER_RATE = (0.05, 3.0), (3e-4, 1e-2), (0.5, 2.0)
ALPHA, V_INIT = (0.02, 0.5), (1e-9, 1e-4)
SPACES: dict[str, dict[str, Range]] = {
    "fedavg": {"lr": RATE, "server_lr": SERVER_RATE},
    "fedadam": {"lr": RATE, "server_lr": (3e-3, 0.1), "tau": (1e-4, 1e-2)},
    "fedcm": {"lr": RATE, "server_lr": SERVER_RATE, "alpha": ALPHA},
    "localadam": {"lr": ADAPTIVE_RATE, "v_init": V_INIT, "server_lr": SERVER_RATE},
    "fedlada": {"lr": ADAPTIVE_RATE, "v_init": V_INIT, "alpha": ALPHA},
}
"""Log-uniform, by method, in the order in which they are drawn."""
DEFAULTS: dict[str, dict[str, float]] = {
    "fedavg": {"lr": 0.1},
    "fedadam": {"lr": 0.1},
    "fedcm": {"lr": 0.1},
    "localadam": {"lr": 0.002, "v_init": 1e-6, "beta1": 0.0},
    "fedlada": {"lr": 0.003, "v_init": 1e-6, "beta1": 0.0, "alpha": 0.3},
}
"""Trial 1: what `fedlada run` takes on untuned data, fixed here; hyperparameters left out are the recipes'."""


@dataclass(frozen=True)
class Run:
    """A trial, or a final of one seed."""

    kind: str
    """"search" or "final"."""
    network: str
    method: str
    number: int
    """Of the trial, from 1; or the seed."""
    values: Mapping[str, float] = field(default_factory=dict)
    """The rate and hyperparameters that differ from the defaults."""
    size: Size = FULL

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.network}/{self.method}/{self.number}"

    @property
    def rounds(self) -> int:
        return self.size.trial_rounds if self.kind == "search" else self.size.final_rounds

    @property
    def metric(self) -> str:
        return "validation" if self.kind == "search" else "test"

    def setting(self) -> dict[str, Any]:
        """Everything that decides the run."""
        values = {**hyper_parameters(self.method), **DEFAULTS[self.method], **self.values}
        return {
            "model": self.network,
            "model_changes": dict(self.size.networks.get(self.network, {})),
            "method": self.method,
            "lr": values.pop("lr"),
            "lr_decay": 0.998,
            "hyper": values,
            "seed": 0 if self.kind == "search" else self.number,
            "held_out": HELD_OUT if self.kind == "search" else 0.0,
            "rounds": self.rounds,
            "eval_every": self.size.trial_every if self.kind == "search" else self.size.final_every,
            **self.size.work,
        }

    def text(self) -> str:
        """The searched values in words."""
        setting = self.setting()
        every = {"lr": setting["lr"], **setting["hyper"]}
        return ", ".join(f"{name} {every[name]:.3g}" for name in SPACES[self.method])


def trials(network: str, method: str, size: Size = FULL) -> list[Run]:
    """The default values, then what is drawn."""
    random = Random(f"{DATASET} {network} {method}")
    drawn = [
        {name: math.exp(random.uniform(math.log(low), math.log(high))) for name, (low, high) in SPACES[method].items()}
        for _ in range(size.num_trials - 1)
    ]
    return [Run("search", network, method, number, values, size) for number, values in enumerate([{}, *drawn], start=1)]


def all_trials(networks: Sequence[str], size: Size = FULL) -> list[Run]:
    """Trial by trial: where the time ends too soon, no method has more of them than another."""
    return [
        trials(network, method, size)[number]
        for number in range(size.num_trials)
        for network in networks
        for method in SPACES
    ]


# Their results --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """A run that has ended."""

    run: Run
    accuracy: Mapping[int, float]
    """By round."""
    loss: Mapping[int, float]
    diverged: int | None = None
    """The round."""

    def mean(self, round: int) -> float | None:
        """A(round)."""
        size = self.run.size
        rounds = range(round - (size.smooth - 1) * size.trial_every, round + 1, size.trial_every)
        return statistics.mean(self.accuracy[one] for one in rounds) if set(rounds) <= self.accuracy.keys() else None

    @property
    def score(self) -> float | None:
        """By which trials are ranked; None where it diverged, since then some means are missing."""
        means = [self.mean(round) for round in self.run.size.stages]
        known = [one for one in means if one is not None]
        return statistics.mean(known) if len(known) == len(means) else None


class Results:
    """The archive: a list of records, written whole after each run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: dict[str, dict[str, Any]] = {}
        if path.exists():
            self.records = {one["key"]: one for one in json.loads(path.read_text(encoding="utf-8"))["runs"]}

    def add(self, record: dict[str, Any]) -> None:
        self.records[record["key"]] = record
        runs = ",\n".join(json.dumps(self.records[key]) for key in sorted(self.records))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_name(f".{self.path.name}.new")
        new.write_text(f'{{"runs": [\n{runs}\n]}}\n', encoding="utf-8")
        os.replace(new, self.path)

    def find(self, run: Run) -> Outcome | None:
        """The run, if it is there with the same settings."""
        record = self.records.get(run.key)
        if record is None or record["setting"] != json.loads(json.dumps(run.setting())):
            return None
        accuracy, loss = (dict(zip(record["rounds"], record[name], strict=True)) for name in ("accuracy", "loss"))
        return Outcome(run, accuracy, loss, record["diverged"])

    def seconds(self, run: Run) -> float:
        """As long as the longest run of its kind took."""
        alike = [one for key, one in self.records.items() if key.startswith(f"{run.kind}/{run.network}/")]
        return max((one["seconds"] for one in alike), default=0.0)


def winner(results: Results, network: str, method: str, size: Size = FULL) -> Run | None:
    """The best trial, where all have ended."""
    found = [results.find(run) for run in trials(network, method, size)]
    ended = [one for one in found if one is not None]
    known = [one for one in ended if one.score is not None]
    if len(ended) < size.num_trials or not known:
        return None
    return max(known, key=lambda one: (one.score, -one.run.number)).run


def finals(results: Results, networks: Sequence[str], size: Size = FULL) -> Iterator[Run]:
    """Seed by seed, with the winners' values; of a model whose search has ended."""
    best = {(network, method): winner(results, network, method, size) for network in networks for method in SPACES}
    ready = [network for network in networks if all(best[network, method] is not None for method in SPACES)]
    for seed in size.seeds:
        for network in ready:
            for method in SPACES:
                won = best[network, method]
                assert won is not None
                yield Run("final", network, method, seed, won.values, size)


# Running them ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where runs are made, and until when."""

    data_dir: str
    device: str
    out: Path
    deadline: float | None = None

    def is_late(self, seconds: float = 0.0) -> bool:
        return self.deadline is not None and time.time() + seconds >= self.deadline

    def folder(self, run: Run) -> Path | None:
        """Where an unfinished run is kept; None where nothing can be saved."""
        if importlib.util.find_spec("safetensors") is None:
            return None
        text = json.dumps([run.key, run.setting(), self.device], sort_keys=True)
        return self.out / hashlib.sha256(text.encode()).hexdigest()[:20]


@cache
def read_data(data_dir: str, share: float, num_evaluated: int | None) -> Source:
    source = load_dataset(DATASET, data_dir)
    if share:
        source = source.holding_out(share)
    x, y = source.validation if share else source.test
    evaluated = (x, y) if num_evaluated is None else (x[:num_evaluated], y[:num_evaluated])
    return replace(source, **{"validation" if share else "test": evaluated})


def make(run: Run, place: Place, should_stop: Callable[[], bool]) -> dict[str, Any] | None:
    """One run as a record; None where the time was over."""
    setting = run.setting()
    source = read_data(place.data_dir, setting["held_out"], run.size.num_evaluated)
    assert source.client is not None
    folder, began, slowest = place.folder(run), time.time(), [0.0, time.time()]

    def watch(simulation: Any, _row: Any) -> None:
        now = time.time()
        slowest[:] = [max(slowest[0], now - slowest[1]) if simulation.round > 1 else 0.0, now]
        if simulation.round < run.rounds and (should_stop() or place.is_late(slowest[0])):
            simulation.pause("the time is over")

    num_diverged = None
    try:
        result = fedlada.simulate(
            partial(
                MODELS[run.network], source.num_classes, input_shape=source.input_shape, **setting["model_changes"]
            ),
            source.train,
            **{run.metric: source.validation if run.kind == "search" else source.test},
            partition=ByKey(keys=source.client.tolist(), names=source.names_of_clients()),
            method=RECIPES[run.method](**setting["hyper"]),
            lr=setting["lr"],
            lr_decay=setting["lr_decay"],
            rounds=run.rounds,
            eval_every=setting["eval_every"],
            seed=setting["seed"],
            device=place.device,
            callbacks=[watch],
            progress=False,
            out=folder,
            checkpoint_every=10**6,
            **run.size.work,
        )
    except TrainingDiverged as error:
        if error.result is None:
            raise
        result, num_diverged = error.result, len(error.result.history) + 1
    if num_diverged is None and len(result.history) < run.rounds:
        return None
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    rounds, accuracy = result.history.measured(f"{run.metric}_accuracy")
    _, loss = result.history.measured(f"{run.metric}_loss")
    # Losses of a run that is about to diverge can be infinite, which JSON does not have.
    finite = [round(one, 6) if math.isfinite(one) else None for one in loss]
    return {
        "key": run.key,
        "setting": setting,
        "rounds": list(rounds),
        "accuracy": [round(one, 6) for one in accuracy],
        "loss": finite,
        "diverged": num_diverged,
        "clients": len(set(source.client.tolist())),
        "train_windows": len(source.labels("train")),
        "engine": result.engine,
        "seconds": round(time.time() - began, 1),
        "where": where(place.device),
    }


def where(device: str) -> str:
    name = torch.cuda.get_device_name(torch.device(device)) if device.startswith("cuda") else platform.machine()
    return f"{name}, torch {torch.__version__}, Python {platform.python_version()}, fedlada {fedlada.__version__}"


def work(tasks: Any, news: Any, stop: Any, place: Place) -> None:
    """A process: takes runs from the queue until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()

    def should_stop() -> bool:
        return stop.is_set() or (parent is not None and not parent.is_alive())

    while (task := tasks.get()) is not None:
        run, expected = task
        too_long = place.folder(run) is None and place.is_late(expected)
        if should_stop() or place.is_late() or too_long:
            continue
        try:
            news.put((run.key, make(run, place, should_stop), ""))
        except Exception as error:  # the other runs go on
            news.put((run.key, None, f"{type(error).__name__}: {error}"))
    news.put(None)


def run_all(runs: Sequence[Run], results: Results, place: Place, num_processes: int) -> int:
    """Make what is missing, as far as the time goes; how many failed."""
    missing = [run for run in runs if results.find(run) is None]
    print(f"{len(missing)} of {len(runs)} runs to make", flush=True)
    if not missing:
        return 0
    # A fork has imported everything, but cannot use a GPU.
    is_forked = sys.platform == "linux" and place.device == "cpu"
    context: Any = multiprocessing.get_context("fork" if is_forked else "spawn")
    tasks, news, stop = context.Queue(), context.Queue(), context.Event()
    num_processes = min(num_processes, len(missing))
    # The processes compile on their own: a pool of compilers for each would take the CPU from all.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    processes = [context.Process(target=work, args=(tasks, news, stop, place)) for _ in range(num_processes)]
    for process in processes:
        process.start()
    # Put by a thread of its own, which a fork must not interrupt.
    for task in (*((run, results.seconds(run)) for run in missing), *[None] * num_processes):
        tasks.put(task)
    num_failed, num_made, began = 0, 0, time.time()
    while True:
        try:
            said = next_news(news, processes)
        except KeyboardInterrupt:
            print("saving the runs under way", flush=True)
            stop.set()
            continue
        if said is None:
            break
        key, record, why = said
        num_failed += bool(why)
        if record is not None:
            results.add(record)
            num_made += 1
        ended = f"{record['seconds']:.0f} s" if record else (why or "not ended, the same command goes on")
        print(f"{time.time() - began:5.0f} s  {num_made}/{len(missing)}  {key}: {ended}", flush=True)
    for process in processes:
        process.join()
    num_killed = sum(process.exitcode != 0 for process in processes)
    tasks.close()
    # A thread that still puts tasks would be cut off at the end; without a reader it would never end.
    if num_killed:
        tasks.cancel_join_thread()
    tasks.join_thread()
    return num_failed + num_killed


def next_news(news: Any, processes: Sequence[Any]) -> tuple[str, Any, str] | None:
    """The next run that ended; None when no process is left."""
    while True:
        is_over = not any(process.is_alive() for process in processes)
        try:
            said: tuple[str, Any, str] | None = news.get(timeout=0.5)
        except queue.Empty:
            if is_over:
                return None
            continue
        if said is not None:
            return said


# The page -------------------------------------------------------------------------------------------------------------


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def spread(values: Sequence[float], form: str = ".2f") -> str:
    if not values:
        return "-"
    return f"{statistics.mean(values):{form}}" + (f" ± {statistics.stdev(values):{form}}" if len(values) > 1 else "")


def final_rows(results: Results, network: str, size: Size) -> list[tuple[str, ...]]:
    """The test accuracy of each method, its distance from FedAvg at the end, and FedLADA's from it."""
    runs = list(finals(results, [network], size))
    shown = (size.final_rounds // 5, size.final_rounds // 2, size.final_rounds)
    made = {one.run.key: one for run in runs if (one := results.find(run)) is not None}
    own = {name: [made[run.key] for run in runs if run.method == name and run.key in made] for name in SPACES}
    ended = {name: [one for one in found if one.diverged is None] for name, found in own.items()}

    def at(method: str, round: int) -> dict[int, float]:
        return {one.run.number: 100 * one.accuracy[round] for one in ended[method] if round in one.accuracy}

    def minus(method: str, other: str, round: int) -> str:
        first, second = at(method, round), at(other, round)
        return interval_text([first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())])

    rows = []
    for method in SPACES:
        cells = [spread(list(at(method, round).values())) for round in shown]
        losses = [value for one in ended[method] if (value := one.loss[size.final_rounds]) is not None]
        values = next((run.text() for run in runs if run.method == method), "-")
        missing = f" ({len(ended[method])} of {len(size.seeds)} seeds)" * (len(ended[method]) < len(size.seeds))
        distance = "-" if method == "fedavg" else minus(method, "fedavg", size.final_rounds)
        behind = ["-" if method == "fedlada" else minus("fedlada", method, round) for round in shown[1:]]
        rows.append((NAMES[method] + missing, values, *cells, spread(losses, ".3f"), distance, *behind))
    return rows


def interval_text(points: Sequence[float]) -> str:
    from fedlada.plots.interval import interval  # needs scipy

    if len(points) < 2:
        return "-"
    found = interval(points)
    return f"{statistics.mean(points):+.2f} ({found.low:+.2f} to {found.high:+.2f})"


def trial_row(one: Outcome, won: Run | None) -> tuple[str, ...]:
    said = ["default"] * (one.run.number == 1) + ["winner"] * (won is not None and won.key == one.run.key)
    means = [percent(one.mean(round)) for round in one.run.size.stages]
    if one.diverged is not None:
        means[-1] = f"diverged in round {one.diverged}"
    number = ", ".join([str(one.run.number), *said])
    return (NAMES[one.run.method], number, one.run.text(), *means, percent(one.score))


def tables(results: Results, size: Size = FULL) -> str:
    """All of them as Markdown."""
    from fedlada.workbench.report.table import Table

    made = []
    for network in NETWORKS:
        if any(results.find(run) for run in finals(results, [network], size)):
            rounds = [f"round {one}" for one in (size.final_rounds // 5, size.final_rounds // 2, size.final_rounds)]
            ahead = [f"FedLADA minus it, {one}, 95 %" for one in rounds[1:]]
            minus = f"minus FedAvg, {rounds[-1]}, 95 %"
            columns = ("method", "values", *rounds, f"loss in {rounds[-1]}", minus, *ahead)
            title = f"{network}: test accuracy, percent"
            made.append(Table(title, columns, tuple(final_rows(results, network, size))))
    for network in NETWORKS:
        rows = []
        for method in SPACES:
            won = winner(results, network, method, size)
            found = [one for run in trials(network, method, size) if (one := results.find(run)) is not None]
            rows += [trial_row(one, won) for one in found]
        if rows:
            means = tuple(f"A({round})" for round in size.stages)
            title = f"{network}: trials, accuracy on held-out text, percent"
            made.append(Table(title, ("method", "trial", "values", *means, "score"), tuple(rows)))
    return "\n".join(one.to_markdown() for one in made) if made else "No run has been made yet.\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("list", "search", "final", "table"))
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=8, help="runs at a time")
    parser.add_argument("--budget", type=float, help="minutes after which runs are saved where they are")
    parser.add_argument("--only", action="append", choices=NETWORKS, help="a model; can be repeated")
    parser.add_argument("--out", type=Path, default=Path("runs/shakespeare"), help="folder for unfinished runs")
    parser.add_argument("--archive", type=Path, default=ARCHIVE)
    parser.add_argument("--page", type=Path, default=PAGE, help=argparse.SUPPRESS)
    parser.add_argument("--trial", action="store_true", help="small models and few rounds")
    parser.add_argument("--write", action="store_true", help="table: put them into the page")
    given = parser.parse_args()
    began = time.time()
    if given.trial and given.archive == ARCHIVE:
        parser.error("--trial needs an --archive of its own")
    size, networks = SMALL if given.trial else FULL, given.only or list(NETWORKS)
    results = Results(given.archive)
    if given.what == "table":
        text = tables(results, size)
        print(text)
        if given.write:
            from many_runs import marks, write_between

            write_between(given.page, marks(TABLE_COMMAND), text)
        return 0
    if given.what == "list":
        for run in all_trials(networks, size):
            print(f"{run.key}: {run.text()}")
        return 0
    runs = all_trials(networks, size) if given.what == "search" else list(finals(results, networks, size))
    if not runs:
        print("the search of no model has ended: search first", file=sys.stderr)
        return 1
    deadline = None if given.budget is None else began + 60 * given.budget
    return int(run_all(runs, results, Place(given.data_dir, given.device, given.out, deadline), given.jobs) > 0)


if __name__ == "__main__":
    sys.exit(main())
