"""The authors' public simulator and fedlada from the same first weights, in float64: the distance of their models.

    python benchmarks/gpu/authors_exact.py --simulator FOLDER [--methods FedAvg,FedCM,...] [--rounds 4] [--unclipped]

What would differ by chance is taken away: random images are not augmented, a client's data are one batch, every client
takes part in every round, both clip to exactly the norm, and fedlada begins at their first weights. Their model is
torchvision's ResNet-18 with GroupNorm, ours our own. Standard output has one line a round: the distance of the two
models over the length of theirs' last move. `authors_accuracy.py` compares what is left out here. Runs on a CPU, in two
minutes a method.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from authors import server_class, train, write_arrays
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedlada import models, simulate
from fedlada.methods.recipes import RECIPES, hyper_parameters
from fedlada.paper.flsim import published_values

OURS_BY_THEIRS = {
    "FedAvg": "fedavg",
    "FedProx": "fedprox",
    "FedAdam": "fedadam",
    "SCAFFOLD": "scaffold",
    "FedDyn": "feddyn",
    "FedCM": "fedcm",
    "FedSAM": "fedsam",
    "FedGamma": "fedgamma",
    "MoFedSAM": "mofedsam",
    "FedSpeed": "fedspeed",
    "FedSMOO": "fedsmoo",
}
NUM_CLIENTS, NUM_IMAGES, EPOCHS, DECAY, CLASSES = 4, 24, 3, 0.9, 100


def random_images() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    labels = random.integers(0, CLASSES, NUM_CLIENTS * NUM_IMAGES)
    return random.standard_normal((len(labels), 3, 32, 32)), labels


def without_augmentation(simulator: Path) -> Callable[[], None]:
    """Their clients then see the images as they are; what is returned undoes it."""
    server_class(simulator)  # puts their modules on the path
    import client.client as their_client

    own = their_client.Dataset
    their_client.Dataset = lambda *arrays, **flags: own(*arrays, **{**flags, "train": False})
    return lambda: setattr(their_client, "Dataset", own)


def hyper_of(method: str) -> dict[str, Any]:
    """The values of their table."""
    ours = OURS_BY_THEIRS[method]
    return {**hyper_parameters(ours), **published_values(ours)["hyper"]}


def clip_exactly(parameters: Any, max_norm: float) -> torch.Tensor:
    """Clipping to the norm itself: torch's divides by the norm plus 1e-6, ours does not."""
    gradients = [one.grad for one in parameters if one.grad is not None]
    norm = torch.stack([one.norm() for one in gradients]).norm()
    for one in gradients:
        one.mul_(torch.clamp(max_norm / norm, max=1.0))
    return norm


def their_models(given: argparse.Namespace, method: str, images: np.ndarray, labels: np.ndarray) -> list[torch.Tensor]:
    """Their global parameters before the first round and after each."""
    found: list[torch.Tensor] = []
    activate = server_class(given.simulator)._activate_clients_

    def watched(self: Any, t: int) -> Any:
        if t == 0:
            found.append(self.server_model_params_list.clone())
        return activate(self, t)

    def keep(self: Any, *_: Any) -> None:
        found.append(self.server_model_params_list.clone())

    hyper = hyper_of(method)
    options = {
        "--dataset": "CIFAR100",
        "--model": "ResNet18",
        "--split-rule": "Dirichlet",
        "--split-coef": 0.6,
        "--active-ratio": 1.0,
        "--total-client": NUM_CLIENTS,
        "--comm-rounds": given.rounds,
        "--local-epochs": EPOCHS,
        "--batchsize": NUM_IMAGES,
        "--weight-decay": hyper["weight_decay"],
        "--local-learning-rate": given.lr,
        "--lr-decay": DECAY,
        "--global-learning-rate": hyper.get("server_lr", 1.0),
        "--alpha": hyper.get("alpha", 0.1),
        "--rho": hyper.get("rho", 0.1),
        "--lamb": hyper.get("mu", 0.1),
        "--seed": 0,
        "--method": method,
    }
    clients = (NUM_CLIENTS, NUM_IMAGES)
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(sys.stderr):
        arrays = {"client_x": images.reshape(*clients, *images.shape[1:]), "client_y": labels.reshape(*clients, 1)}
        tests = {"test_x": images[:NUM_IMAGES], "test_y": labels[:NUM_IMAGES, None]}
        write_arrays(Path(place), f"CIFAR100_{NUM_CLIENTS}_0_Dirichlet_0.600", **arrays, **tests)
        train(given.simulator, Path(place), options, _test_=keep, _activate_clients_=watched)
    return found


def our_model(
    first: torch.Tensor,
    method: str,
    images: np.ndarray,
    labels: np.ndarray,
    rounds: int,
    lr: float,
    changes: dict[str, Any],
) -> torch.Tensor:
    """Our global parameters after so many rounds."""
    model = models.resnet18_gn(CLASSES)
    vector_to_parameters(first, model.parameters())
    result = simulate(
        model,
        (images, labels),
        method=RECIPES[OURS_BY_THEIRS[method]](**{**hyper_of(method), **changes}),
        partition=list(np.arange(len(labels)).reshape(NUM_CLIENTS, NUM_IMAGES)),
        cohort_size=NUM_CLIENTS,
        batch_size=NUM_IMAGES,
        local_epochs=EPOCHS,
        lr=lr,
        lr_decay=DECAY,
        rounds=rounds,
        dtype=torch.float64,
        device="cpu",
    )
    return parameters_to_vector(result.model.parameters()).detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulator", type=Path, required=True, help="the folder of FL-Simulator")
    parser.add_argument("--methods", default=",".join(OURS_BY_THEIRS))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument(
        "--unclipped", action="store_true", help="clip in neither: FedProx clips in another place there"
    )
    given = parser.parse_args()
    if not (given.simulator / "train.py").is_file():
        parser.error(f"--simulator must be the folder of FL-Simulator, with its train.py, got {given.simulator}")
    given.simulator = given.simulator.resolve()
    torch.set_default_dtype(torch.float64)
    images, labels = random_images()
    undo = without_augmentation(given.simulator)
    own, torch.nn.utils.clip_grad_norm_ = torch.nn.utils.clip_grad_norm_, clip_exactly
    changes: dict[str, Any] = {}
    if given.unclipped:
        changes, torch.nn.utils.clip_grad_norm_ = {"clip_norm": None}, lambda **_: None
    try:
        for method in given.methods.split(","):
            theirs = their_models(given, method, images, labels)
            for rounds in range(1, given.rounds + 1):
                ours = our_model(theirs[0], method, images, labels, rounds, given.lr, changes)
                moved = (theirs[rounds] - theirs[rounds - 1]).norm()
                print(f"{method}, round {rounds}: {float((ours - theirs[rounds]).norm() / moved):.1e}", flush=True)
    finally:
        undo()
        torch.nn.utils.clip_grad_norm_ = own


if __name__ == "__main__":
    main()
