"""How long the full data sets take to open, how much memory they need, and what their partitions look like.

    python benchmarks/datasets.py --data-dir DATA [--out benchmarks/results/datasets_HARDWARE_YYYYMM.md]

DATA holds `cifar-10-batches-py`, `cifar-100-python` and `tiny-imagenet-200` (`fedlada data fetch`). Each measurement
is a process of its own. The decoded cache of TinyImageNet is removed first, so the first opening decodes it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

NAMES = ("cifar10", "cifar100", "tinyimagenet")


def private_dirty_megabytes() -> float:
    """Memory that this process wrote itself: pages mapped from a file are not among it."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")) / 1000


def measure(name: str, data_dir: str) -> None:
    """Open a data set, divide it, fetch augmented batches; prints one line of JSON."""
    import numpy as np
    import torch

    from fedlada.data import Dirichlet, as_samples, load_dataset

    before = private_dirty_megabytes()
    start = time.perf_counter()
    source = load_dataset(name, data_dir, augment="authors")
    opened = time.perf_counter() - start
    memory = private_dirty_megabytes() - before
    labels = source.labels("train")
    facts = {
        "seconds": opened,
        "private_mb": memory,
        "train": len(labels),
        "test": len(source.labels("test")),
        "shape": "x".join(map(str, source.input_shape)),
        "classes": source.num_classes,
        "per_class": sorted(set(np.bincount(labels).tolist())),
    }
    samples = as_samples(source.train, torch.device("cpu"), torch.float32)
    words = np.random.Philox(0).random_raw(50)
    start = time.perf_counter()
    for number in range(100):
        samples.batch(np.arange(50) + 50 * number, words)
    facts["batch_ms"] = (time.perf_counter() - start) * 10
    parts = np.array_split(source.train.x, 20)
    facts["grey"] = sum(int((part[:, :1] == part).all(axis=(1, 2, 3)).sum()) for part in parts)
    for refill in (False, True):
        clients = Dirichlet(num_clients=100, concentration=0.6, refill=refill).assign(labels, 0)
        counts = np.stack([np.bincount(labels[own], minlength=source.num_classes) for own in clients])
        share = counts / counts.sum(axis=1, keepdims=True)
        used = np.concatenate(clients)
        facts["refilled" if refill else "once"] = {
            "sizes": [int(counts.sum(axis=1).min()), int(counts.sum(axis=1).max())],
            "classes": [int((counts > 0).sum(axis=1).min()), int(np.median((counts > 0).sum(axis=1)))],
            "largest_share": round(float(share.max(axis=1).mean()), 3),
            "used": round(len(np.unique(used)) / len(labels), 4),
        }
    print(json.dumps(facts))


def in_its_own_process(name: str, data_dir: str) -> dict:
    command = [sys.executable, __file__, "--measure", name, "--data-dir", data_dir]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def report(data_dir: str) -> str:
    import torch

    shutil.rmtree(Path(data_dir) / "tiny-imagenet-200" / ".fedlada-cache", ignore_errors=True)
    lines = [
        "# Opening the paper's data sets",
        "",
        f"`python benchmarks/datasets.py --data-dir DATA`, {date.today():%d %B %Y}; {platform.machine()}, "
        f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__.split('+')[0]}.",
        "",
        "| data set | train | test | shape | classes | images a class | grey | opened first, s | again, s "
        "| private memory, MB | images, MB | augmented batch of 50, ms |",
        "|" + "---|" * 12,
    ]
    partitions = [
        "",
        "Partition: 100 clients, Dirichlet 0.6, seed 0; each sample once, and with classes refilled as in the authors'",
        "simulator.",
        "",
        "| data set | refilled | samples a client | classes a client, fewest and median | mean share of a client's "
        "largest class | of the images used |",
        "|---|---|---|---|---|---|",
    ]
    for name in NAMES:
        first, again = in_its_own_process(name, data_dir), in_its_own_process(name, data_dir)
        size = again["train"] + again["test"]
        for part in again["shape"].split("x"):
            size *= int(part)
        lines.append(
            f"| {name} | {again['train']} | {again['test']} | {again['shape']} | {again['classes']} "
            f"| {', '.join(map(str, again['per_class']))} | {again['grey']} | {first['seconds']:.2f} "
            f"| {again['seconds']:.2f} | {again['private_mb']:.0f} | {size / 1e6:.0f} | {again['batch_ms']:.2f} |"
        )
        for refill in ("once", "refilled"):
            one = again[refill]
            partitions.append(
                f"| {name} | {'yes' if refill == 'refilled' else 'no'} | {one['sizes'][0]} to {one['sizes'][1]} "
                f"| {one['classes'][0]}, {one['classes'][1]} | {one['largest_share']} | {100 * one['used']:.1f} % |"
            )
    notes = [
        "",
        "Private memory is what the process wrote itself while opening; the decoded images of TinyImageNet are",
        "mapped from their file and shared by all processes. Opening checks every byte's checksum. Grey: training",
        "images whose three channels are equal.",
    ]
    return "\n".join([*lines, *notes, *partitions]) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--measure", choices=NAMES)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.measure:
        measure(given.measure, given.data_dir)
    else:
        if given.out is not None:
            given.out.parent.mkdir(parents=True, exist_ok=True)  # before anything is measured
        text = report(given.data_dir)
        print(text)
        if given.out:
            given.out.write_text(text)
