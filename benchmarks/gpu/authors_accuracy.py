"""Test accuracy by round in the authors' public simulator, unchanged, and in fedlada, on the same clients' images.

    python benchmarks/gpu/authors_accuracy.py --simulator FOLDER --data-dir DATA [--dataset cifar100] [--rounds 20]
        [--methods FedAvg,FedCM] [--seeds 0,1,2] [--only theirs|ours] [--precision tf32] [--out FILE.json]

Both get the rows of one partition: 100 clients, Dirichlet 0.6 with refilling, seed 0. Both train ResNet-18-GN with the
7x7 stem at rate 0.1, times 0.998 after each round, batches of 50, 2 local epochs on CIFAR-100 and 5 on CIFAR-10, L2
1e-3, clipping at norm 10 and, in FedCM, alpha 0.1; a coin of 0.1 for each client draws the cohorts. Evaluated is the
test set, after every fifth round and the last. Ours runs under every seed and first, because theirs changes PyTorch's
global switches; theirs is slow and runs under the first two seeds. Standard output is one JSON line.

Equal in both: the order of a step (correct the gradient, clip it, add L2 unscaled by alpha), FedCM's direction (the
mean update over K and the rate of its own round, nothing in round 1), the uniform mean, the rate's decay, the kept
last short batch, normalisation, flip then crop with zeros for the mean colour, the distributions of the first weights,
evaluation in evaluation mode (GroupNorm has no other).

What differs:
- Random numbers: first weights, cohorts, order of batches, flips and crops come from other generators.
- Theirs draws the cohort and the augmentation of round t from seed + t: its seed 1 meets the cohorts of seed 0 one
  round earlier. Seeds far apart (0,1000,2000) are independent.
- Theirs draws an empty cohort again; ours skips the round (once in 38,000 rounds).
- Theirs computes in TF32 with deterministic cuDNN. So does ours by default, in kernels of its own; `--precision bf16`
  is what fedlada takes where nothing is asked for.
- Theirs clips by 10 / (norm + 1e-6), ours by 10 / norm.
- Theirs divides FedCM's direction by epochs * images / 50, ours by the steps taken: the same where 50 divides the
  images.
- Theirs divides images among clients by a rule of its own, which is not used here: a class that has run out starts
  again in the same order, ours in a new one, and the draw that finds it empty is repeated.
- Ours leaves out a client whose update is NaN and ends a run in which all are; theirs goes on with it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from authors import server_class, train, write_arrays

from fedlada import models, recipes, simulate
from fedlada.data import Dirichlet, Source, as_samples, load_dataset
from fedlada.federation.cohorts import Bernoulli

LOCAL_EPOCHS = {"cifar10": 5, "cifar100": 2}
BATCH, RATE, DECAY, SHARE, CONCENTRATION = 50, 0.1, 0.998, 0.1, 0.6
HABITS = {"weight_decay": 1e-3, "clip_norm": 10.0}
OURS = {"FedAvg": recipes.fedavg(**HABITS), "FedCM": recipes.fedcm(alpha=0.1, **HABITS)}
EVALUATED_EVERY = 5
MOST_OF_THEIR_SEEDS = 2


def divide(source: Source, num_clients: int, images_per_client: int | None) -> np.ndarray:
    """The rows of each client, as many for each: theirs are one array."""
    rule = Dirichlet(num_clients=num_clients, concentration=CONCENTRATION, refill=True)
    clients = rule.assign(source.labels("train"), 0)
    each = min(len(own) for own in clients)
    if images_per_client is not None:
        each = min(each, images_per_client)
    return np.stack([own[:each] for own in clients])


def run_ours(source: Source, rows: np.ndarray, method: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    result = simulate(
        partial(models.resnet18_gn, source.num_classes),
        source.train,
        test=source.test,
        method=OURS[method],
        partition=list(rows),
        cohorts=Bernoulli(SHARE),
        batch_size=BATCH,
        local_epochs=LOCAL_EPOCHS[given.dataset],
        lr=RATE,
        lr_decay=DECAY,
        rounds=given.rounds,
        eval_every=EVALUATED_EVERY,
        seed=seed,
        precision=given.precision,
    )
    rounds, accuracies = result.history.measured("test_accuracy")
    clients = [len(row["clients"]) for row in result.history]
    return {"accuracy": dict(zip(rounds, accuracies, strict=True)), "clients": clients}


def write_theirs(folder: Path, name: str, source: Source, rows: np.ndarray) -> None:
    """The images as ours sees them, normalised but not augmented."""
    train_samples, test_samples = (
        as_samples(images, torch.device("cpu"), torch.float32) for images in (source.train, source.test)
    )
    client_x, client_y = train_samples.batch(rows.reshape(-1))
    test_x, test_y = test_samples.batch(np.arange(len(test_samples)))
    write_arrays(
        folder,
        name,
        client_x=client_x.view(*rows.shape, *source.input_shape).numpy(),
        client_y=client_y.view(*rows.shape, 1).numpy(),
        test_x=test_x.numpy(),
        test_y=test_y.view(-1, 1).numpy(),
    )


def run_theirs(folder: Path, method: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    activate = server_class(given.simulator)._activate_clients_
    accuracies: dict[int, float] = {}
    chosen: list[int] = []

    def evaluate_now_and_then(self, t, *_):
        done = t + 1
        if done % EVALUATED_EVERY == 0 or done == given.rounds:
            self.test_perf[t] = self._validate_((self.datasets.test_x, self.datasets.test_y))
            accuracies[done] = float(self.test_perf[t][1])

    def counted(self, t):
        chosen.append(len(activate(self, t)))
        return activate(self, t)

    options = {
        "--dataset": given.dataset.upper(),
        "--model": "ResNet18",
        "--split-rule": "Dirichlet",
        "--split-coef": CONCENTRATION,
        "--active-ratio": SHARE,
        "--total-client": given.num_clients,
        "--comm-rounds": given.rounds,
        "--local-epochs": LOCAL_EPOCHS[given.dataset],
        "--batchsize": BATCH,
        "--weight-decay": HABITS["weight_decay"],
        "--local-learning-rate": RATE,
        "--lr-decay": DECAY,
        "--alpha": 0.1,
        "--seed": seed,
        "--method": method,
    }
    with contextlib.redirect_stdout(sys.stderr):
        train(given.simulator, folder, options, _test_=evaluate_now_and_then, _activate_clients_=counted)
    return {"accuracy": accuracies, "clients": chosen}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulator", type=Path, help="the folder of FL-Simulator; not needed with --only ours")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--dataset", choices=tuple(LOCAL_EPOCHS), default="cifar100")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--methods", default="FedAvg,FedCM")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", choices=("theirs", "ours"))
    parser.add_argument("--precision", choices=("auto", "bf16", "tf32", "float32"), default="tf32", help="of ours")
    parser.add_argument("--num-clients", type=int, default=100, help="fewer, to try it out")
    parser.add_argument("--images-per-client", type=int, help="fewer, to try it out")
    parser.add_argument("--out", type=Path, help="where to store the same JSON, after each run")
    given = parser.parse_args()
    methods, seeds = given.methods.split(","), [int(seed) for seed in given.seeds.split(",")]
    if unknown := sorted(set(methods) - set(OURS)):
        parser.error(f"there is no method {unknown[0]} here: take {' or '.join(OURS)}")
    if given.only != "ours":
        if given.simulator is None or not (given.simulator / "train.py").is_file():
            parser.error(f"--simulator must be the folder of FL-Simulator, with its train.py, got {given.simulator}")
        given.simulator = given.simulator.resolve()

    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)  # before anything is measured
    source = load_dataset(given.dataset, given.data_dir, augment="authors")
    rows = divide(source, given.num_clients, given.images_per_client)
    result = {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "dataset": given.dataset,
        "clients": len(rows),
        "images_per_client": rows.shape[1],
        "our_precision": given.precision,
        "runs": [],
    }

    def add(whose: str, method: str, seed: int, run: Any, *arguments: Any) -> None:
        start = time.perf_counter()
        measured = run(*arguments, method, seed, given)
        seconds = round(time.perf_counter() - start, 1)
        result["runs"].append({"simulator": whose, "method": method, "seed": seed, **measured, "seconds": seconds})
        print(result["runs"][-1], file=sys.stderr, flush=True)
        if given.out is not None:
            given.out.write_text(json.dumps(result, indent=1) + "\n")

    if given.only != "theirs":
        for method in methods:
            for seed in seeds:
                add("ours", method, seed, run_ours, source, rows)
    if given.only != "ours":
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            write_theirs(folder, "written", source, rows)
            for seed in seeds[:MOST_OF_THEIR_SEEDS]:
                # It looks for a folder with the seed in its name, and would divide the images anew without it.
                name = f"{given.dataset.upper()}_{given.num_clients}_{seed}_Dirichlet_{CONCENTRATION:.3f}"
                (folder / "Data" / name).symlink_to(folder / "Data" / "written")
                for method in methods:
                    add("theirs", method, seed, run_theirs, folder)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
