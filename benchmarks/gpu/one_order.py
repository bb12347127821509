"""What it costs, and what it mends, that the compiler may not choose between orders of a sum by their time.

    python benchmarks/gpu/one_order.py pace                    # seconds a round, alone on the GPU
    PYTHONPATH=tests python benchmarks/gpu/one_order.py pairs  # beside other programs: do two runs agree?

`pairs` runs short simulations of SCAFFOLD two at a time, as the tests on a GPU have them, with the choice forbidden and
allowed by turns, and says which pairs ended with other bits.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import torch

import fedlada.engines.stacked.compiling as compiling
from fedlada import recipes
from fedlada.data import Augmentation, Images, LocalWork, as_samples
from fedlada.engines import StackedEngine
from fedlada.federation.cohorts import FixedSize
from fedlada.federation.plan import Plan
from fedlada.federation.schedules import as_schedule
from fedlada.models import resnet18_gn
from fedlada.training.simulation import Simulation

GPU = torch.device("cuda")
ALLOWED = {"one order": compiling.fixed_choices, "by time": dict[str, Any]}


def pace() -> None:
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (10_000, 3, 32, 32), dtype=np.uint8)
    samples = as_samples(Images(x, np.arange(10_000) % 10, (0.5,) * 3, (0.25,) * 3, Augmentation()), GPU, torch.float32)
    for method in ("fedavg", "fedcm", "scaffold", "fedlada"):
        for name, options in ALLOWED.items():
            compiling.fixed_choices = options
            torch.manual_seed(0)
            engine = StackedEngine(resnet18_gn(10), recipes.RECIPES[method](clip_norm=10.0), samples, None, device=GPU)
            plan = Plan(
                clients=[np.arange(i * 500, i * 500 + 500) for i in range(20)],
                cohorts=FixedSize(10),
                work=LocalWork(batch_size=50, epochs=5),
                schedule=as_schedule(0.01, 1.0),
            )
            simulation = Simulation(engine, plan)
            simulation.run(3)
            times = []
            for _ in range(12):
                torch.cuda.synchronize()
                began = time.perf_counter()
                simulation.run_round()
                torch.cuda.synchronize()
                times.append(time.perf_counter() - began)
            print(f"{method}, {name}: {statistics.median(times):.4f} s a round", flush=True)


def pairs(seconds: float) -> None:
    from equivalence.test_gpu_stacked import simulation
    from method_table import METHODS

    cases: list[tuple[str, dict[str, Any], tuple[bool, bool], int | None]] = [
        ("memories on host and device", {}, (True, False), None),
        ("on the device", {}, (False, False), None),
        ("on the host", {}, (True, True), None),
        ("not clipped", {"clip_norm": None}, (True, False), None),
        ("not compiled, host and device", {}, (True, False), 1),
        ("not compiled, device", {}, (False, False), 1),
    ]
    end, turn = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        what, changes, hosts, steps = cases[turn % len(cases)]
        name = list(ALLOWED)[turn // len(cases) % 2]
        compiling.fixed_choices = ALLOWED[name]
        turn += 1
        ends = []
        for on_host in hosts:
            one = simulation(StackedEngine, METHODS["scaffold"].method(**changes), num_steps=steps)
            one.engine.memories.on_host = on_host
            one.run(4)
            ends.append(one.server.params)
        apart = (ends[0] - ends[1]).abs()
        different = f"{int((apart > 0).sum())} parameters differ, by at most {float(apart.max()):.2g}"
        print(f"{name}, {what}: {different if apart.any() else 'equal'}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pace", "pairs"))
    parser.add_argument("--seconds", type=float, default=160, help="how long pairs are run")
    given = parser.parse_args()
    pace() if given.what == "pace" else pairs(given.seconds)
