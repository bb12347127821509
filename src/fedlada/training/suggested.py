"""Suggested learning rates and hyperparameters by method and data set: the defaults of runs.

Hyperparameters are the best of searches on held-out training data. For the digits these were four grids of 12 each
(`benchmarks/tune_digits.py`, `benchmarks/results/tuning*_digits_*.md`). On CIFAR-100 and CIFAR-10 the paper's eight
methods, FedDyn and three sharpness-aware methods had twelve random trials each, under a protocol written before
(`docs/results/protocol.md`); `docs/results/finals.md` and `finals-cifar10.md` have the test results.
FedLADA ends higher on CIFAR-100 with values of an earlier, larger search, which would be an unfair default.
FedDyn keeps its published values, with their own decay of the rate: with the protocol's it rises and falls, and no run
combined its winner with another decay.
For five methods on TinyImageNet they were those of `benchmarks/tune_paper.py` (`benchmarks/results/tuning_*_h200_*`).
There FedLADA and FedCM had a larger search; decoupled decay was chosen after test results. All other values are the
paper's. Sharpness-aware and dynamically regularized methods have the values that the authors' simulator was published
with on CIFAR-10, server optimizers those of Reddi et al. (2021).
Elsewhere adaptive methods have the values on which searches on digits and Fashion-MNIST agree, others the paper's rate.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from fedlada.data.sources import DATASETS
from fedlada.methods.local import AMSGrad
from fedlada.methods.method import FederatedMethod
from fedlada.methods.recipes import RECIPES
from fedlada.methods.validation import one_of

SGD_BASED = {"lr": 0.1, "lr_decay": 0.998}
ADAPTIVE = {"lr": 0.001, "lr_decay": 0.998}
"""The paper's rates."""

Tuned = tuple[float, dict[str, Any]]
"""A learning rate, and the hyperparameters that differ from the recipe's defaults."""
ELSEWHERE: dict[str, Tuned] = {
    "localadam": (0.002, {"v_init": 1e-6, "beta1": 0.0}),
    "fedlada": (0.003, {"alpha": 0.3, "v_init": 1e-6, "beta1": 0.0}),
}
"""Values for untuned data sets that are not in the paper: above all no first moment, since it restarts every round."""

AS_THE_SIMULATOR = {"clip_pull": False}
PUBLISHED: dict[str, dict[str, Any]] = {
    "feddyn": {"lr_decay": 0.9995, "hyper": AS_THE_SIMULATOR},
    "fedspeed": {"hyper": AS_THE_SIMULATOR},
    "fedsmoo": {"hyper": AS_THE_SIMULATOR},
    "mofedsam": {"hyper": {"alpha": 0.05}},
    "fedavgm": {"lr": 0.03, "hyper": {"server_lr": 0.3}},
    "fedadagrad": {"lr": 0.03, "hyper": {"server_lr": 0.1, "tau": 1e-2}},
    "fedyogi": {"lr": 0.03, "hyper": {"server_lr": 0.01, "tau": 1e-3}},
}
"""On CIFAR and TinyImageNet, where they differ from the rates above and the recipes' defaults; rates are rounded."""
PARENTS = {"fedlada_sam": "fedlada"}
"""Variants that use the values of another method where they have none."""

PAPER_ALPHA = {"cifar10": 0.1, "cifar100": 0.05, "tinyimagenet": 0.05}
"""FedLADA's alpha; the paper gives none for FedCM and amended FedAdam, which keep the recipes' 0.1."""

CLIPPED = {"clip_norm": 10.0}
DECOUPLED = {"decoupled": True, **CLIPPED, "alpha": 0.1}
EARLIER: dict[tuple[str, str], Tuned] = {
    ("digits", "fedavg"): (0.07, {}),
    ("digits", "fedprox"): (0.08, {"mu": 0.6, "server_lr": 1.2}),
    ("digits", "scaffold"): (0.045, {"server_lr": 1.2}),
    ("digits", "fedcm"): (0.2, {"alpha": 0.25}),
    ("digits", "fedadam"): (0.05, {"server_lr": 0.03, "tau": 1e-3}),
    ("digits", "fedadam_amended"): (0.05, {"server_lr": 0.06, "alpha": 0.9}),
    ("digits", "localadam"): (0.002, {"v_init": 1e-6, "beta1": 0.0}),
    ("digits", "fedlada"): (0.003, {"alpha": 0.5, "v_init": 1e-7, "beta1": 0.0}),
    ("cifar100", "fedavg"): (0.03, {"weight_decay": 3e-3, **CLIPPED, "server_lr": 1.5}),
    ("cifar100", "scaffold"): (0.05, {"weight_decay": 3e-3, **CLIPPED, "server_lr": 1.5}),
    ("cifar100", "fedcm"): (0.1, {"weight_decay": 1e-3, **CLIPPED, "alpha": 0.1}),
    ("cifar100", "fedadam"): (0.03, {"weight_decay": 3e-3, **CLIPPED, "server_lr": 0.1, "tau": 1e-2}),
    ("cifar100", "fedlada"): (5e-4, {"weight_decay": 0.2, **DECOUPLED, "v_init": 1e-7, "beta1": 0.0}),
    ("cifar10", "fedavg"): (0.1, {"weight_decay": 3e-3, **CLIPPED, "server_lr": 1.5}),
    ("cifar10", "scaffold"): (0.05, {"weight_decay": 3e-3, **CLIPPED, "server_lr": 1.5}),
    ("cifar10", "fedcm"): (0.1, {"weight_decay": 1e-3, **CLIPPED, "alpha": 0.1}),
    ("cifar10", "fedadam"): (0.03, {"weight_decay": 3e-3, **CLIPPED, "server_lr": 0.1, "tau": 1e-2}),
    ("cifar10", "fedlada"): (0.03, {"weight_decay": 3e-3, **DECOUPLED, "v_init": 1e-8, "beta1": 0.0, "power": 0.125}),
    ("tinyimagenet", "fedavg"): (0.05, {"weight_decay": 1e-3, **CLIPPED, "server_lr": 1.5}),
    ("tinyimagenet", "scaffold"): (0.05, {"weight_decay": 1e-3, **CLIPPED, "server_lr": 1.5}),
    ("tinyimagenet", "fedcm"): (0.1, {"weight_decay": 5e-4, **CLIPPED, "alpha": 0.1}),
    ("tinyimagenet", "fedadam"): (0.03, {"weight_decay": 1e-3, **CLIPPED, "server_lr": 0.1, "tau": 1e-2}),
    ("tinyimagenet", "fedlada"): (5e-4, {"weight_decay": 0.05, **DECOUPLED, "v_init": 1e-7, "beta1": 0.0}),
}
"""The best of searches before the protocol: on the paper's data sets methods did not have the same number of trials."""
WINNERS: dict[tuple[str, str], Tuned] = {
    ("cifar100", "fedavg"): (0.051, {"weight_decay": 3.4e-4, **CLIPPED, "server_lr": 1.7}),
    ("cifar100", "fedprox"): (0.0762, {"weight_decay": 2.99e-4, **CLIPPED, "server_lr": 1.72, "mu": 0.711}),
    ("cifar100", "scaffold"): (0.093, {"weight_decay": 3.03e-4, **CLIPPED, "server_lr": 1.59}),
    ("cifar100", "fedcm"): (0.1, {"weight_decay": 1e-3, **CLIPPED}),
    ("cifar100", "fedadam"): (0.0363, {"weight_decay": 1.51e-3, **CLIPPED, "server_lr": 0.19, "tau": 0.0205}),
    ("cifar100", "fedadam_amended"): (
        0.0876,
        {"weight_decay": 6.37e-4, **CLIPPED, "server_lr": 0.0162, "alpha": 0.406},
    ),
    ("cifar100", "localadam"): (
        6.42e-4,
        {"weight_decay": 1.06e-4, **CLIPPED, "server_lr": 0.863, "v_init": 1.06e-9},
    ),
    ("cifar100", "fedlada"): (
        1.08e-3,
        {"weight_decay": 0.0192, **DECOUPLED, "alpha": 0.13, "v_init": 7.54e-8, "beta1": 0.0},
    ),
    ("cifar100", "mofedsam"): (0.148, {"weight_decay": 2.26e-4, **CLIPPED, "alpha": 0.344, "rho": 0.0134}),
    ("cifar100", "fedsmoo"): (
        0.0533,
        {"weight_decay": 1.4e-3, **CLIPPED, **AS_THE_SIMULATOR, "mu": 0.0119, "rho": 0.0182},
    ),
    ("cifar100", "fedlada_sam"): (
        9.54e-4,
        {"weight_decay": 5.49e-3, **DECOUPLED, "alpha": 0.0907, "rho": 0.0308, "beta1": 0.0},
    ),
    ("cifar10", "fedavg"): (0.1, {"weight_decay": 1e-3, **CLIPPED}),
    ("cifar10", "fedprox"): (0.17, {"weight_decay": 3.13e-4, **CLIPPED, "server_lr": 1.3, "mu": 0.0276}),
    ("cifar10", "scaffold"): (0.268, {"weight_decay": 2.6e-4, **CLIPPED, "server_lr": 1.16}),
    ("cifar10", "fedcm"): (0.1, {"weight_decay": 1e-3, **CLIPPED}),
    ("cifar10", "fedadam"): (0.0437, {"weight_decay": 6.01e-4, **CLIPPED, "server_lr": 0.0188, "tau": 1.64e-3}),
    ("cifar10", "fedadam_amended"): (
        0.0812,
        {"weight_decay": 2.16e-4, **CLIPPED, "server_lr": 0.0182, "alpha": 0.471},
    ),
    ("cifar10", "localadam"): (
        9.77e-4,
        {"weight_decay": 0.279, "decoupled": True, **CLIPPED, "server_lr": 0.781, "v_init": 1.78e-7},
    ),
    ("cifar10", "fedlada"): (1.34e-3, {"weight_decay": 0.039, **DECOUPLED, "alpha": 0.303, "v_init": 2.66e-8}),
    ("cifar10", "mofedsam"): (0.18, {"weight_decay": 3.36e-4, **CLIPPED, "alpha": 0.135, "rho": 0.0341}),
    ("cifar10", "fedlada_sam"): (8.18e-4, {"weight_decay": 0.0423, **DECOUPLED, "alpha": 0.111, "rho": 0.0235}),
}
"""The best of each method under the protocol, to three digits, where it is not what it has anyway."""
TUNED = {**EARLIER, **WINNERS}


def suited(method: str, dataset: str | None = None) -> dict[str, Any]:
    """`lr`, `lr_decay` and `hyper` of a method on a data set, or on a user's own data."""
    if (dataset or "", method) not in TUNED:
        method = PARENTS.get(method, method)
    rates = ADAPTIVE if is_adaptive(method) else SGD_BASED
    tuned = TUNED.get((dataset or "", method))
    if tuned is None and dataset in PAPER_ALPHA:
        published = PUBLISHED.get(method, {})
        return {**rates, **published, "hyper": {**printed_hyper(dataset, method), **published.get("hyper", {})}}
    lr, hyper = tuned or ELSEWHERE.get(method, (rates["lr"], {}))
    return {**rates, "lr": lr, "hyper": hyper}


def suggested(method: str, dataset: str | None = None) -> dict[str, Any]:
    """The arguments `method`, `lr` and `lr_decay`: `simulate(model, data, **fedlada.suggested("fedlada", "cifar10"))`.

    `fedlada run` uses them on that data set or, without one, on a user's own data, and so does the bare name of a
    method. For LocalAdam and FedLADA, also with SAM, they come from searches on two tasks that agree; for the others
    they are the paper's rate and the recipe's defaults. Use the three together.
    """
    one_of("method", method, tuple(RECIPES))
    if dataset is not None:
        one_of("dataset", dataset, tuple(DATASETS))
    values = suited(method, dataset)
    return {"method": RECIPES[method](**values["hyper"]), "lr": values["lr"], "lr_decay": values["lr_decay"]}


@cache
def is_adaptive(method: str) -> bool:
    """Whether its clients run AMSGrad, judged by its parts, so that a new method needs no entry here."""
    return runs_amsgrad(RECIPES[method]())


def runs_amsgrad(method: FederatedMethod) -> bool:
    """Whether its clients run AMSGrad."""
    return any(isinstance(part, AMSGrad) for part in method.local)


def printed_hyper(dataset: str, method: str) -> dict[str, Any]:
    """The paper's weight decay and alpha; clipping at norm 10 is from the authors' simulator.

    The paper does not say where the decay of adaptive clients acts. After AMSGrad (`decoupled`) FedLADA and LocalAdam
    come nearer to the printed rounds than with L2, before the moments (`docs/results/sensitivity.md`).
    """
    decay: dict[str, Any] = {"weight_decay": 1e-2, "decoupled": True} if is_adaptive(method) else {"weight_decay": 1e-3}
    alpha = {"alpha": PAPER_ALPHA[dataset]} if method == "fedlada" else {}
    return {**decay, "clip_norm": 10.0, **alpha}
