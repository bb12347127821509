"""Seconds of a client's round on one CPU core, with and without what the sequential engine does for memory and layout.

    python benchmarks/cpu_steps.py [--repeats 3]

Each figure is the least of the repeats' medians, in CPU time; each repeat is a process of its own, all interleaved.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

CASES = (
    ("pfl-cnn", "fedavg", 20),
    ("pfl-cnn", "fedlada", 20),
    ("lenet", "fedavg", 20),
    ("lenet", "fedlada", 20),
    ("resnet18-gn", "fedavg", 4),
    ("resnet18-gn", "fedlada", 4),
)
"""Model, method and clients a round; a client has 50 images of 3x32x32, in batches of 10."""
VARIANTS = ("neither", "memory", "layout", "both")
ROUNDS = 3


def measure(model: str, method: str, num_clients: int, variant: str) -> dict[str, float]:
    """The median client of a run, in CPU milliseconds, and its page faults."""
    import torch

    import fedlada
    from fedlada.engines import cpu_memory, sequential
    from fedlada.engines.sequential import SequentialEngine
    from fedlada.models.call import call
    from fedlada.models.factory import model_factory

    if variant not in ("memory", "both"):
        cpu_memory._glibc = lambda: None
    if variant not in ("layout", "both"):
        sequential.forward_for = lambda *_: call
    milliseconds, faults, real = [], [], SequentialEngine.train_client

    def timed(*given, **named):
        pages, start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time()
        answer = real(*given, **named)
        milliseconds.append(1000 * (time.process_time() - start))
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages)
        return answer

    SequentialEngine.train_client = timed
    torch.manual_seed(0)
    x, y = torch.randn(50 * num_clients, 3, 32, 32), torch.randint(0, 10, (50 * num_clients,))
    fedlada.simulate(
        model_factory(model)(10, input_shape=(3, 32, 32)), (x, y), method=getattr(fedlada.recipes, method)(),
        partition=[range(50 * one, 50 * one + 50) for one in range(num_clients)], cohort_size=num_clients,
        rounds=ROUNDS, batch_size=10, local_epochs=1, lr=1e-3, device="cpu",
    )  # fmt: skip
    return {"ms": statistics.median(milliseconds), "faults": statistics.median(faults)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", nargs=4, metavar=("MODEL", "METHOD", "CLIENTS", "VARIANT"), help="measure here")
    given = parser.parse_args()
    if given.repeats < 1:
        parser.error(f"--repeats must be positive, got {given.repeats}")
    if given.one:
        model, method, num_clients, variant = given.one
        if variant not in VARIANTS:
            parser.error(f"VARIANT must be one of {', '.join(VARIANTS)}, got {variant!r}")
        print(json.dumps(measure(model, method, int(num_clients), variant)))
        return
    print("| model | method | ms a client | memory kept | layout | both | ratio | page faults | memory kept |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for model, method, num_clients in CASES:
        found: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
        for _ in range(given.repeats):
            for variant in VARIANTS:
                words = [sys.executable, __file__, "--one", model, method, str(num_clients), variant]
                environment = os.environ | {"OMP_NUM_THREADS": "1"}
                done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
                found[variant].append(json.loads(done.stdout.splitlines()[-1]))
        least = {variant: min(one["ms"] for one in own) for variant, own in found.items()}
        faults = [f"{min(one['faults'] for one in found[variant]):,.0f}" for variant in ("neither", "memory")]
        times = " | ".join(f"{least[variant]:.0f}" for variant in VARIANTS)
        print(
            f"| `{model}` | {method} | {times} | {least['both'] / least['neither']:.2f} | {' | '.join(faults)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
