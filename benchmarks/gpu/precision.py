"""What bf16 costs in accuracy: the same seeds in bf16 and in TF32 on CIFAR-100, ResNet-18-GN.

    python benchmarks/gpu/precision.py --data-dir DATA [--rounds 150] [--seeds 0,1,2] [--out precision.json]

100 clients, Dirichlet 0.6, 10 a round, 2 local epochs of batches of 50, the authors' augmentation; evaluated every 10
rounds.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path

from fedlada import models, recipes, simulate
from fedlada.data import Dirichlet, load_dataset

METHODS = {
    "fedavg": (recipes.fedavg(weight_decay=1e-3, clip_norm=10.0), 0.1),
    "fedlada": (recipes.fedlada(alpha=0.05, weight_decay=1e-3, clip_norm=10.0, v_init=1e-4), 0.01),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, default=Path("precision.json"))
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)  # before anything is measured
    source = load_dataset("cifar100", given.data_dir, augment="authors")
    rows = []
    for seed in map(int, given.seeds.split(",")):
        for name, (method, lr) in METHODS.items():
            for precision in ("bf16", "tf32"):
                start = time.perf_counter()
                result = simulate(
                    partial(models.resnet18_gn, source.num_classes),
                    source.train,
                    test=source.test,
                    method=method,
                    partition=Dirichlet(num_clients=100, concentration=0.6),
                    cohort_size=10,
                    local_epochs=2,
                    batch_size=50,
                    lr=lr,
                    lr_decay=0.998,
                    rounds=given.rounds,
                    eval_every=10,
                    seed=seed,
                    precision=precision,
                )
                accuracy = [round(one, 4) for one in result.history.measured("test_accuracy")[1]]
                spent = round(time.perf_counter() - start, 1)
                rows.append(
                    {"method": name, "precision": precision, "seed": seed, "accuracy": accuracy, "seconds": spent}
                )
                print(rows[-1], flush=True)
                given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
