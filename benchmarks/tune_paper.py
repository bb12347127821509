"""Tunes methods equally on one of the paper's data sets, then reproduces its tables with the best of each.

    python benchmarks/tune_paper.py tune  --dataset cifar100 --data-dir data --out runs/tuned --jobs 3 --lanes 2
    python benchmarks/tune_paper.py best  --dataset cifar100 --out runs/tuned
    python benchmarks/tune_paper.py final --dataset cifar100 --data-dir data --out runs/tuned -- T6,F2 --seeds 0,1,2

Sixteen configurations a method, a tenth of the training data held out, seed 0: all go to round 100, the best third to
round 300. The score is the mean validation accuracy over rounds 50, 100, ..., 300, so that an early rise and a good end
both count. The test set is looked at in `final` alone. Every stage goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fedlada.cli import main as fedlada
from fedlada.paper import choices

NUM_CONFIGURATIONS = 16
RULES = ("--validation", "0.1", "--by", "mean", "--rounds", "300", "--eval-every", "50", "--halving", "3")
SETTING = ("--refill", "--lr-decay", "0.998", "--clip-norm", "10", "--checkpoint-every", "100000")

Grid = dict[str, tuple[float, ...]]
GRIDS: dict[str, Grid] = {
    "fedlada": {
        "lr": (0.005, 0.01, 0.02),
        "alpha": (0.05, 0.1, 0.2),
        "weight_decay": (1e-3, 3e-3),
        "beta1": (0.0, 0.9),
        "v_init": (1e-4,),
        "decoupled": (False,),
    },
    "fedcm": {"lr": (0.1, 0.2, 0.4), "alpha": (0.05, 0.1, 0.2), "weight_decay": (3e-4, 1e-3, 3e-3)},
    "scaffold": {"lr": (0.03, 0.05, 0.1), "weight_decay": (1e-4, 1e-3, 3e-3), "server_lr": (1.0, 1.5)},
    "fedadam": {
        "lr": (0.01, 0.03, 0.1),
        "server_lr": (0.03, 0.1),
        "tau": (1e-3, 1e-2),
        "weight_decay": (1e-3, 3e-3),
    },
    "fedavg": {"lr": (0.03, 0.05, 0.1), "weight_decay": (1e-4, 1e-3, 3e-3), "server_lr": (1.0, 1.5)},
}
"""Laid around the best of a first, wider search and of the map in `docs/results.md`."""
APART = {"scaffold": "server_lr"}
"""Its clients remember a vector each: with half of the sixteen checkpoints at a time a disk of 64 GB does."""


def sweeps(method: str) -> list[tuple[str, Grid, int]]:
    """Name, grid and number of configurations of each search that a method needs."""
    grid = GRIDS[method]
    if method not in APART:
        return [(method, grid, NUM_CONFIGURATIONS)]
    name = APART[method]
    each = NUM_CONFIGURATIONS // len(grid[name])
    return [(f"{method}-{value:g}", {**grid, name: (value,)}, each) for value in grid[name]]


def tune(method: str, given: argparse.Namespace) -> None:
    for name, grid, number in sweeps(method):
        values = [word for key, own in grid.items() for word in ("--set", f"{key}={','.join(str(v) for v in own)}")]
        setting = ("--method", method, "--dataset", given.dataset, *place(given), *SETTING, *RULES)
        many = ("--sample", str(number), "--jobs", str(given.jobs), "--discard-checkpoints", "--quiet")
        command = [sys.executable, "-m", "fedlada", "sweep", *values, *setting, *many, "--out", str(given.out / name)]
        subprocess.run([*command, "--cache", str(given.out / "runs")], check=False)


def place(given: argparse.Namespace) -> tuple[str, ...]:
    return ("--data-dir", given.data_dir, "--device", given.device)


def best(method: str, folder: Path) -> tuple[float, dict[str, Any]] | None:
    """Score and values of the best configuration so far."""
    found = []
    for name, grid, _ in sweeps(method):
        table = folder / name / "table.csv"
        rows = list(csv.DictReader(table.open())) if table.exists() else []
        if not rows or not rows[0]["mean validation_accuracy"][:1].isdigit():
            continue
        read = {key: json.loads(rows[0][key].lower()) for key in grid}
        values = {key: one if isinstance(one, bool) else float(one) for key, one in read.items()}
        found.append((float(rows[0]["mean validation_accuracy"].split()[0]), values))
    return max(found, key=lambda one: one[0], default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("tune", "best", "final"))
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--methods", default=",".join(GRIDS))
    parser.add_argument("--jobs", type=int, default=3, help="runs at a time, in each lane")
    parser.add_argument("--lanes", type=int, default=1, help="methods at a time")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    given, asked = parser.parse_args(words[:cut]), words[cut + 1 :]
    if given.stage == "final" and not asked:
        parser.error("final needs what `fedlada reproduce` is asked for, after --")
    methods = given.methods.split(",")
    if given.stage == "tune":
        with ThreadPoolExecutor(given.lanes) as lanes:
            list(lanes.map(lambda method: tune(method, given), methods))
    for method in methods:
        found = best(method, given.out)
        if found is None:
            print(f"{method}: no search has ended", flush=True)
            continue
        score, values = found
        hyper = {name: value for name, value in values.items() if name != "lr"}
        print(f'    ("{given.dataset}", "{method}"): ({values["lr"]}, {hyper}),  # {score}', flush=True)
        choices.OURS[given.dataset, method] = (values["lr"], hyper)
    if given.stage == "final":
        setting = ("--scale", "full", "--preset", "tuned", "--datasets", given.dataset, *place(given))
        kept = ("--cache", str(given.out / "runs"), "--discard-checkpoints", "--quiet", "--jobs", str(given.jobs))
        out = ("--methods", given.methods, "--out", str(given.out / f"final-{asked[0]}"))
        sys.argv = ["fedlada", "reproduce", *asked, *setting, *kept, *out]
        fedlada()


if __name__ == "__main__":
    main()
