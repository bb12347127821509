"""The cost of bf16 in accuracy: the same seeds in bf16 and in TF32, ResNet-18-GN.

    python benchmarks/gpu/precision.py --data-dir DATA [--rounds 150] [--seeds 0,1,2] [--out precision.json]
    python benchmarks/gpu/precision.py --data-dir DATA --dataset cifar10 --methods fedsam,fedlada_sam --seeds 0

100 clients, Dirichlet 0.6, 10 a round, 2 local epochs (CIFAR-10: 5) of batches of 50, the authors' augmentation;
evaluated every 10 rounds. A look of length rho is what bf16 may round away.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path

from fedlada import models, recipes, simulate, suggested
from fedlada.data import Dirichlet, load_dataset

METHODS = {
    "fedavg": (recipes.fedavg(weight_decay=1e-3, clip_norm=10.0), 0.1),
    "fedlada": (recipes.fedlada(alpha=0.05, weight_decay=1e-3, clip_norm=10.0, v_init=1e-4), 0.01),
    "fedsam": (recipes.fedsam(rho=0.1, weight_decay=1e-3, clip_norm=10.0), 0.1),
    "fedlada_sam": tuple(suggested("fedlada_sam", "cifar10")[name] for name in ("method", "lr")),
}
EPOCHS = {"cifar10": 5, "cifar100": 2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--dataset", choices=EPOCHS, default="cifar100")
    parser.add_argument("--methods", default="fedavg,fedlada")
    parser.add_argument("--precisions", default="bf16,tf32")
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, default=Path("precision.json"))
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)  # before anything is measured
    source = load_dataset(given.dataset, given.data_dir, augment="authors")
    rows = []
    for seed in map(int, given.seeds.split(",")):
        for name in given.methods.split(","):
            method, lr = METHODS[name]
            for precision in given.precisions.split(","):
                start = time.perf_counter()
                result = simulate(
                    partial(models.resnet18_gn, source.num_classes),
                    source.train,
                    test=source.test,
                    method=method,
                    partition=Dirichlet(num_clients=100, concentration=0.6),
                    cohort_size=10,
                    local_epochs=EPOCHS[given.dataset],
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
