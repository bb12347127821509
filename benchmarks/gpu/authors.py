"""Seconds a round of the authors' public simulator (github.com/woodenchild95/FL-Simulator), unchanged.

    python benchmarks/gpu/authors.py --simulator FOLDER [--rounds 3] [--methods FedAvg,FedCM]

It evaluates on the whole training set in every round; that is timed apart. It draws its cohorts by a coin for each
client, so training time is also given for ten clients.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
import tempfile
import time
from pathlib import Path

import numpy as np


def write_data(folder: Path, name: str, classes: int) -> None:
    place = folder / "Data" / name
    place.mkdir(parents=True)
    random = np.random.default_rng(0)
    np.save(place / "client_x.npy", random.standard_normal((100, 500, 3, 32, 32), dtype=np.float32))
    np.save(place / "client_y.npy", random.integers(0, classes, (100, 500, 1)))
    np.save(place / "test_x.npy", random.standard_normal((10_000, 3, 32, 32), dtype=np.float32))
    np.save(place / "test_y.npy", random.integers(0, classes, (10_000, 1)))


def run(simulator: Path, folder: Path, method: str, rounds: int) -> dict:
    """Its own `train.py`, with a watch around its evaluation and its choice of clients."""
    sys.path.insert(0, str(simulator))
    os.chdir(simulator)
    from server.server import Server

    evaluated, chosen, started = [], [], []
    test, activate = Server._test_, Server._activate_clients_

    def timed_test(self, *arguments):
        start = time.perf_counter()
        test(self, *arguments)
        evaluated.append(time.perf_counter() - start)

    def counted(self, t):
        started.append(time.perf_counter())
        chosen.append(len(activate(self, t)))
        return activate(self, t)

    Server._test_, Server._activate_clients_ = timed_test, counted
    options = ["--dataset", "CIFAR10", "--non-iid", "--comm-rounds", rounds, "--data-file", f"{folder}/", "--out-file"]
    sys.argv = ["train.py", *map(str, options), f"{folder}/out/", "--method", method]
    try:
        runpy.run_path(str(simulator / "train.py"), run_name="__main__")
    finally:
        Server._test_, Server._activate_clients_ = test, activate
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
            write_data(Path(folder), "CIFAR10_100_20_Dirichlet_0.600", 10)
            (Path(folder) / "out").mkdir()
            results.append(run(simulator, Path(folder), method, given.rounds + 1))
    print("RESULT", json.dumps(results))


if __name__ == "__main__":
    main()
