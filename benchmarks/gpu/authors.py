"""Seconds a round of the authors' public simulator (github.com/woodenchild95/FL-Simulator), unchanged.

    python benchmarks/gpu/authors.py --simulator FOLDER [--rounds 3] [--methods FedAvg,FedCM]

It evaluates on the whole training set in every round; that is timed apart. It draws its cohorts by a coin for each
client, so training time is also given for ten clients.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def write_arrays(folder: Path, name: str, **arrays: np.ndarray) -> None:
    """The files in which it looks for a federation of that name: each client's images, and the test set."""
    place = folder / "Data" / name
    place.mkdir(parents=True)
    for part, values in arrays.items():
        np.save(place / f"{part}.npy", values)


def write_random_data(folder: Path, name: str, classes: int) -> None:
    random = np.random.default_rng(0)
    write_arrays(
        folder,
        name,
        client_x=random.standard_normal((100, 500, 3, 32, 32), dtype=np.float32),
        client_y=random.integers(0, classes, (100, 500, 1)),
        test_x=random.standard_normal((10_000, 3, 32, 32), dtype=np.float32),
        test_y=random.integers(0, classes, (10_000, 1)),
    )


def server_class(simulator: Path) -> Any:
    """Its server, whose methods can be watched or replaced."""
    if str(simulator) not in sys.path:
        sys.path.insert(0, str(simulator))
    from server.server import Server

    return Server


def train(simulator: Path, folder: Path, options: dict[str, Any], **methods: Callable) -> None:
    """Its own `train.py` on the data in `folder`, with these methods in place of its server's."""
    server = server_class(simulator)
    own = {name: getattr(server, name) for name in methods}
    places = {"--data-file": f"{folder}/", "--out-file": f"{folder}/out/"}
    flags = [str(part) for pair in {**options, **places}.items() for part in pair]
    sys.argv = ["train.py", "--non-iid", *flags]
    try:
        for name, method in methods.items():
            setattr(server, name, method)
        runpy.run_path(str(simulator / "train.py"), run_name="__main__")
    finally:
        for name, method in own.items():
            setattr(server, name, method)


def run(simulator: Path, folder: Path, method: str, rounds: int) -> dict:
    """Its training with a watch around its evaluation and its choice of clients."""
    server = server_class(simulator)
    evaluated, chosen, started = [], [], []
    test, activate = server._test_, server._activate_clients_

    def timed_test(self, *arguments):
        start = time.perf_counter()
        test(self, *arguments)
        evaluated.append(time.perf_counter() - start)

    def counted(self, t):
        started.append(time.perf_counter())
        chosen.append(len(activate(self, t)))
        return activate(self, t)

    options = {"--dataset": "CIFAR10", "--comm-rounds": rounds, "--method": method}
    train(simulator, folder, options, _test_=timed_test, _activate_clients_=counted)
    ended = time.perf_counter()
    whole = np.diff([*started, ended])[1:]  # the first round starts everything up
    training = whole - np.array(evaluated)[1:]
    clients = np.array(chosen[1:])
    return {
        "method": method,
        "rounds": len(whole),
        "round_s": float(whole.mean()),
        "evaluation_s": float(np.mean(evaluated[1:])),
        "training_s": float(training.mean()),
        "training_s_for_10_clients": float((training / clients).mean() * 10),
        "clients": clients.tolist(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulator", type=Path, required=True)
    parser.add_argument("--methods", default="FedAvg,FedCM")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    simulator = given.simulator.resolve()
    results = []
    for method in given.methods.split(","):
        with tempfile.TemporaryDirectory() as folder:
            write_random_data(Path(folder), "CIFAR10_100_20_Dirichlet_0.600", 10)
            results.append(run(simulator, Path(folder), method, given.rounds + 1))
    print("RESULT", json.dumps(results))


if __name__ == "__main__":
    main()
