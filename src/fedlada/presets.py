"""Hyper-parameters that suit a data set: what is used where nothing is given.

The digits' values were found by `benchmarks/tune_digits.py` (`benchmarks/results/tuning*_digits_*.md`): 24
configurations for each method, chosen by accuracy on a validation split of the training data, never on the test set.
"""

from __future__ import annotations

from typing import Any

from fedlada.local import AMSGrad
from fedlada.recipes import RECIPES

SGD_BASED = {"lr": 0.1, "lr_decay": 0.998, "model": "cnn-gn", "hyper": {}}
ADAPTIVE = {"lr": 0.001, "lr_decay": 0.998, "model": "cnn-gn", "hyper": {}}
"""The paper's rates, where nothing was tuned."""

TUNED: dict[tuple[str, str], dict[str, Any]] = {
    ("digits", "fedavg"): {"lr": 0.05},
    ("digits", "fedprox"): {"lr": 0.1, "hyper": {"mu": 0.3}},
    ("digits", "scaffold"): {"lr": 0.06},
    ("digits", "fedcm"): {"lr": 0.2, "hyper": {"alpha": 0.3}},
    ("digits", "fedadam"): {"lr": 0.05, "hyper": {"server_lr": 0.05, "tau": 1e-3}},
    ("digits", "fedadam_amended"): {"lr": 0.1, "hyper": {"server_lr": 0.05, "alpha": 0.5}},
    ("digits", "localadam"): {"lr": 0.003, "hyper": {"v_init": 1e-6}},
    ("digits", "fedlada"): {"lr": 0.01, "hyper": {"alpha": 0.3, "v_init": 1e-8}},
}


def preset(dataset: str, method: str) -> dict[str, Any]:
    """`lr`, `lr_decay`, `model` and `hyper` for a method on a data set."""
    # By its parts, not by its name: a new method needs no entry here.
    is_adaptive = any(isinstance(part, AMSGrad) for part in RECIPES[method]().local)
    default = ADAPTIVE if is_adaptive else SGD_BASED
    return {**default, **TUNED.get((dataset, method), {})}
