"""Seconds and memory of a simulation with 1,000, 10,000 and 100,000 clients, of whom 50 take part in a round.

    python benchmarks/many_clients.py

Every client has ten samples of eight numbers, the model is an MLP of 314 parameters, so that the time of a round is
that of the simulation and not of its gradients. Each number of clients and each method runs in a new process, and so
does the resumed run: the peak of a process's memory never falls.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import fedlada
from fedlada.runs.folder import RunFolder

COHORT, SAMPLES, FEATURES, CLASSES = 50, 10, 8, 10
ROUNDS, PLANNED = 12, 20
METHODS = {"fedavg": fedlada.recipes.fedavg, "scaffold": fedlada.recipes.scaffold}
PARTITIONS = {"iid": fedlada.data.IID, "dirichlet": fedlada.data.Dirichlet}
HEADER = [
    "clients", "partition", "method", "start, s", "start, MB", "plan, ms", "round, ms", "rounds, MB", "save, ms",
    "resume, s",
]  # fmt: skip


def peak() -> float:
    """The most memory that this process has had, in MB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


class Stages(fedlada.Observer):
    """Measures the stages of a simulation as it passes them."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.before, self.began = peak(), time.perf_counter()
        self.found: dict[str, float] = {}
        self.stamps: list[float] = []

    def on_start(self, simulation: fedlada.Simulation, num_rounds: int) -> None:
        self.found["start_s"] = time.perf_counter() - self.began
        self.found["start_mb"] = peak() - self.before
        began = time.perf_counter()
        for number in range(1, PLANNED + 1):
            simulation.plan.round(number)
        self.found["plan_ms"] = (time.perf_counter() - began) / PLANNED * 1e3
        self.stamps.append(time.perf_counter())

    def on_round(self, simulation: fedlada.Simulation, row: dict[str, Any]) -> None:
        self.stamps.append(time.perf_counter())
        if row["round"] == ROUNDS:
            self.found["round_ms"] = statistics.median(np.diff(self.stamps)) * 1e3
            self.found["rounds_mb"] = peak() - self.before
            began = time.perf_counter()
            self.folder.save(simulation)
            self.found["save_ms"] = (time.perf_counter() - began) * 1e3


def measure(clients: int, method: str, partition: str, rounds: int, out: Path) -> dict[str, float]:
    """Run a simulation and return what its stages took."""
    torch.manual_seed(0)
    data = torch.randn(clients * SAMPLES, FEATURES), torch.randint(CLASSES, (clients * SAMPLES,))
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    folder = RunFolder(out, checkpoint_every=10**6)
    stages = Stages(folder)
    fedlada.simulate(
        model,
        data,
        method=METHODS[method](),
        partition=PARTITIONS[partition](num_clients=clients),
        cohort_size=COHORT,
        batch_size=SAMPLES,
        lr=0.1,
        rounds=rounds,
        callbacks=[stages],
        out=folder,
        device="cpu",
        progress=False,
    )
    return stages.found


def in_a_process(clients: int, method: str, partition: str, rounds: int, out: Path) -> dict[str, float]:
    """Measure in a new process."""
    words = [str(clients), method, partition, str(rounds), str(out)]
    done = subprocess.run([sys.executable, __file__, "--inside", *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measured(clients: int, method: str, partition: str) -> dict[str, Any]:
    """A run, and its resumption for one more round."""
    with tempfile.TemporaryDirectory() as folder:
        found = in_a_process(clients, method, partition, ROUNDS, Path(folder) / "run")
        resumed = in_a_process(clients, method, partition, ROUNDS + 1, Path(folder) / "run")
    about = {"clients": clients, "partition": partition, "method": method}
    return {**about, **found, "resume_s": resumed["start_s"]}


def line(found: dict[str, Any]) -> str:
    """A row of the table."""
    about = (f"{found['clients']:,}", found["partition"], found["method"])
    forms = {"start_s": ".2f", "start_mb": ".0f", "plan_ms": ".1f", "round_ms": ".0f", "rounds_mb": ".0f"}
    numbers = [f"{found[name]:{form}}" for name, form in {**forms, "save_ms": ".0f", "resume_s": ".2f"}.items()]
    return f"| {' | '.join((*about, *numbers))} |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--out", type=Path, help="also write the figures to this JSON file")
    parser.add_argument("--inside", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside is not None:
        clients, method, partition, rounds, out = args.inside
        print(json.dumps(measure(int(clients), method, partition, int(rounds), Path(out))))
        return
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
    print(f"| {' | '.join(HEADER)} |\n|---:|---|---|{'---:|' * (len(HEADER) - 3)}", flush=True)
    everything = []
    for clients in args.clients:
        for method, partition in (("fedavg", "iid"), ("scaffold", "iid"), ("fedavg", "dirichlet")):
            everything.append(measured(clients, method, partition))
            print(line(everything[-1]), flush=True)
    if args.out is not None:
        args.out.write_text(json.dumps(everything, indent=2) + "\n")


if __name__ == "__main__":
    main()
