"""How many rounds a GPU does when 1, 2, 3 or 4 simulations run at a time: `python benchmarks/gpu/at_a_time.py`.

With NVIDIA's Multi-Process Service (`docs/reproduce.md` says how it is started) and without it.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

import torch
from speed import Federation, seconds_a_round

AT_A_TIME, ROUNDS, SECONDS = (1, 2, 3, 4), 60, 300
"""Nobody waits longer than these seconds for another, who may have failed."""


def work(number: int, gates: list[Any], found: Any) -> None:
    """One simulation, which takes part where at least so many run."""
    simulation = Federation("cifar100").simulation("fedlada")
    for _ in range(3):
        simulation.run_round()
    torch.cuda.synchronize()
    for many, gate in zip(AT_A_TIME, gates, strict=True):
        gate.wait()
        if number < many:
            found.put((many, seconds_a_round(simulation, ROUNDS)))
        gate.wait()


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    gates, found = [context.Barrier(max(AT_A_TIME), timeout=SECONDS) for _ in AT_A_TIME], context.Queue()
    workers = [context.Process(target=work, args=(number, gates, found)) for number in range(max(AT_A_TIME))]
    for worker in workers:
        worker.start()
    times = [found.get(timeout=SECONDS) for _ in range(sum(AT_A_TIME))]
    for worker in workers:
        worker.join()
    for many in AT_A_TIME:
        slowest = max(seconds for number, seconds in times if number == many)
        print(f"{many} at a time: {slowest / many:.4f} s for each round of any of them")
