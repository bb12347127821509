"""Whether a lossless coder on top of the codes would pay: real messages of a run, their entropy, and what zlib does.

    python benchmarks/entropy.py [--rounds 20]

Trains FedLADA on the digits with `--messages lean`, then takes the next broadcast and one client's upload apart.
"""

from __future__ import annotations

import argparse
import math
import time
import zlib
from collections import Counter

from fedlada.messages import Exchange
from fedlada.messages.wire import _raw
from fedlada.training.simulation import Observer
from fedlada.workbench.experiment import Experiment


class Last(Observer):
    """Keeps the simulation."""

    def on_start(self, simulation, num_rounds):
        self.simulation = simulation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    last = Last()
    Experiment(method="fedlada", rounds=rounds, messages="lean", device="cpu").run([last])
    simulation = last.simulation
    plan = simulation.plan.round(rounds + 1)
    answer = next(iter(simulation.engine.answers(simulation.server.broadcast, plan, {})))
    exchange = Exchange("int4:params=int8", simulation.engine.method, 0)  # each vector in every round
    parts = {**exchange.encode(simulation.server.broadcast, 1), **exchange.encode(answer.upload, 1)}
    print("| vector | code | bytes | entropy of single bytes | Huffman (zlib) | zlib 6 | ms for zlib 6 |")
    print("|---|---|---|---|---|---|---|")
    total = before = 0
    for path, one in parts.items():
        data = b"".join(_raw(part) for part in one.parts.values())
        entropy = sum(-n / len(data) * math.log2(n / len(data)) for n in Counter(data).values()) / 8
        huffman = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
        short = len(huffman.compress(data) + huffman.flush())
        start = time.perf_counter()
        deflated = len(zlib.compress(data, 6))
        spent = 1000 * (time.perf_counter() - start)
        total, before = total + short, before + len(data)
        shares = " | ".join(f"{value:.2f}" for value in (entropy, short / len(data), deflated / len(data)))
        print(f"| {path} | {one.codec} | {len(data)} | {shares} | {spent:.2f} |")
    print(f"\nall together: {total / before:.2f} of {before} bytes")


if __name__ == "__main__":
    main()
